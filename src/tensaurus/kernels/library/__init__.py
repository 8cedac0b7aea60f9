"""Compiled kernels as a shared library of custom operators for onnxruntime."""
