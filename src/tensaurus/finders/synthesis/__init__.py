"""Generates rewrite rules: terms are enumerated, laws proved and pruned (TASO, SOSP'19, sections 2 to 4)."""
