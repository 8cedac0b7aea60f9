"""Links compiled kernels into a shared library of custom operators for onnxruntime."""
