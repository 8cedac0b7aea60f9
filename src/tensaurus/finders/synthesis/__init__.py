"""Rewrite rules that nobody wrote: enumerated, proved and pruned (TASO, SOSP'19, sections 2 to 4)."""
