"""Kernels generated from expressions."""
