"""Expressions evaluated in any field, by array operations."""
