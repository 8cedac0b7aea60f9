"""Fusion: regions of operators as one eOperator each, whose scope is the composition of theirs.

    Relu(Add(Conv(x, w), b))   ->   eop(x, w, b, scope='L[...](max(0, add(sum[...](...), x2[...])))')

(EINNET section 5: eOperators; which regions there are follows from the operators' expressions alone.)
Kernels may have their tensors in blocked layouts (`finders/fuse/blocked_layouts`).
"""

from __future__ import annotations

from tensaurus.finders.fuse.blocked_layouts import Blocked
from tensaurus.finders.fuse.fusion_finder import Fuse, Fusion

__all__ = ["Blocked", "Fuse", "Fusion"]
