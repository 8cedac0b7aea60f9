"""NasNet-A (mobile)."""
