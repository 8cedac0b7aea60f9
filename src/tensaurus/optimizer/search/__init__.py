"""Searches for faster equal programs: by equality saturation (TENSAT) and by backtracking (TASO)."""
