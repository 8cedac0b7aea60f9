"""Expressions compiled to kernels, tuned, and linked to a library that a stock onnxruntime loads."""
