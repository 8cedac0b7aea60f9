"""Derivation over tensor-algebra expressions (EINNET, OSDI'23).

Rules rewrite the expressions of a program's linear regions (sums of products, and the moves of elements
around them) until operators or generated kernels compute them.
"""

from tensaurus.finders.derive.derivation_cache import DerivationCache
from tensaurus.finders.derive.derivation_finder import Derive

__all__ = ["DerivationCache", "Derive"]
