"""Compares programs, and replays the equations between them, before any constant is rounded."""
