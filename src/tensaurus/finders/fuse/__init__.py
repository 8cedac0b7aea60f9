"""Proposes to fuse regions of operators into one eOperator, for which a kernel is generated.

    Relu(Add(Conv(x, w), b))   ->   eop(x, w, b, scope='L[...](max(0, add(sum[...](...), x2[...])))')

The eOperator's expression is the composition of the operators' expressions, from which alone the regions are
found (EINNET section 5). The tensors of kernels may have blocked layouts (`finders/fuse/blocked_layouts`).
"""

from __future__ import annotations

from tensaurus.finders.fuse.blocked_layouts import Blocked
from tensaurus.finders.fuse.fusion_finder import Fuse, Fusion

__all__ = ["Blocked", "Fuse", "Fusion"]
