"""Prices programs: by the roofline, by measured operators, and by costs in context."""
