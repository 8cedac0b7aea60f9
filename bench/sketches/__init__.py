"""Random small models: of any declared operators, and of the left sides of rules with surroundings."""

from sketches.operators import of_operators
from sketches.sides import of_rule
from sketches.sketch import Sketch, Undrawn

__all__ = ["Sketch", "Undrawn", "of_operators", "of_rule"]
