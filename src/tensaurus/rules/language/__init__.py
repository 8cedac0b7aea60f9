"""Rules as text: terms, side conditions, evidence, and matches in programs."""
