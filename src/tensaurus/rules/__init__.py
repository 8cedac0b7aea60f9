"""Rewrite rules as text, with their evidence: proved for all sizes, or tested on instances."""
