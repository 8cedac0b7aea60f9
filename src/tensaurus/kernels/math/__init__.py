"""Builds Halide expressions of scalar functions and type conversions."""
