"""Random small models: of any declared operators, of what rounds, of integers around constants, of branches
by size, and of the left sides of rules."""

from sketches.branches import of_branches
from sketches.integers import of_integers
from sketches.operators import of_operators
from sketches.precision import of_precision
from sketches.sides import of_rule
from sketches.sketch import Sketch, Undrawn

__all__ = ["Sketch", "Undrawn", "of_branches", "of_integers", "of_operators", "of_precision", "of_rule"]
