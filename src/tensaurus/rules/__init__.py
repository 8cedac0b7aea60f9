"""Rewrite rules as data: text, terms, matching, instantiation and verification."""
