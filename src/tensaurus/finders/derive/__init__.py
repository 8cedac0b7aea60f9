"""Derivation over tensor-algebra expressions (EINNET, OSDI'23): equal expressions, and operators in them."""

from tensaurus.finders.derive.derivation_cache import Memory
from tensaurus.finders.derive.derivation_finder import Derive

__all__ = ["Derive", "Memory"]
