"""Compiles expressions to kernels, tunes them, and links them into a library that a stock onnxruntime loads.
"""
