"""Lowers loop nests to Halide functions, schedules them, and compiles them."""
