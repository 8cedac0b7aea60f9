"""Derivation over tensor-algebra expressions (EINNET, OSDI'23): equal expressions, and operators in them."""

from tensaurus.derive.finder import Derive
from tensaurus.derive.memory import Memory

__all__ = ["Derive", "Memory"]
