"""Tensor algebra: integer sizes, scopes, their canonical form and their evaluation in any field."""
