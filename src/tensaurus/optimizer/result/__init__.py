"""Candidates compared with the original, and the result with its record."""
