"""Analyses of whole programs: constant folding, degrees, and the effect of small changes of constants."""
