"""Random small models: of any declared operators, of what rounds, and of the left sides of rules."""

from sketches.operators import of_operators
from sketches.precision import of_precision
from sketches.sides import of_rule
from sketches.sketch import Sketch, Undrawn

__all__ = ["Sketch", "Undrawn", "of_operators", "of_precision", "of_rule"]
