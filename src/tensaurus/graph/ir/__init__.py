"""Nodes, programs and constants, and their text."""
