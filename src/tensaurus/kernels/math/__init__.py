"""Scalar functions and conversions as Halide expressions."""
