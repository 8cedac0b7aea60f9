"""Loop nests lowered to Halide functions, scheduled and compiled."""
