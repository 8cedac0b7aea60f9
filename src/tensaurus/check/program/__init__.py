"""Two programs compared before any constant is rounded."""
