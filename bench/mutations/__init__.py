"""Mutations of models, by kind; `mutant(seed, number)` is the same on every machine."""

from mutations import attributes, control, functions, sizes, structure, tensors, wire
from mutations.draw import KINDS, Mutant, mutant

__all__ = ["KINDS", "Mutant", "mutant"]

MODULES = (wire, structure, sizes, attributes, functions, control, tensors)  # each registers its mutations
