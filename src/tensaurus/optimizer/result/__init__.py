"""Compares candidates with the original, and returns the result with its record."""
