"""Proposes to fuse regions of operators: one eOperator, whose expression is the composition of theirs.

    Relu(Add(Conv(x, w), b))   ->   eop(x, w, b, scope='L[...](max(0, add(sum[...](...), x2[...])))')

Regions are found from the operators' expressions alone (EINNET section 5: eOperators). The tensors of kernels
may have blocked layouts (`finders/fuse/blocked_layouts`).
"""

from __future__ import annotations

from tensaurus.finders.fuse.blocked_layouts import Blocked
from tensaurus.finders.fuse.fusion_finder import Fuse, Fusion

__all__ = ["Blocked", "Fuse", "Fusion"]
