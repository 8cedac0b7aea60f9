"""Sequential search over programs (TASO section 5), kept as the baseline of saturation."""
