"""Derivation over tensor-algebra expressions (EINNET, OSDI'23).

Rules rewrite the expressions of a program's linear regions (sums of products, and the moves of elements
around them) until operators or generated kernels compute them.  The files write expressions like this:

    L[i, j](sum[k](...))     a scope with traversal iterators i, j; i:5 is an iterator of extent 5
    {L[j](...)}[i + 1]       a read of a nested scope
    x[i - 1] | 0             a read whose value beyond the edges of x is 0
"""

from tensaurus.finders.derive.derivation_cache import DerivationCache
from tensaurus.finders.derive.derivation_finder import Derive

__all__ = ["DerivationCache", "Derive"]
