"""From expressions to compiled kernels, and to libraries of them that a stock onnxruntime loads."""
