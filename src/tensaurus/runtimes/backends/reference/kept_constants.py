"""Keeps the constants of a program as an evaluation converted or computed them, for further runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensaurus.graph.ir.node import Node

__all__ = ["KeptConstants"]


@dataclass
class KeptConstants:
    """Values that inputs do not change, for further runs of a program; room for `bytes_left` more bytes.

    Converting the weights of VGG-19 to float64 takes a seventh of a run.
    """

    bytes_left: int
    values: dict[Node, Any] = field(default_factory=dict)

    def keep(self, node: Node, value: Any) -> None:
        """Keep the value of a node if there is room for it."""
        size = value.nbytes if isinstance(value, np.ndarray) else 0
        if size <= self.bytes_left:
            self.bytes_left -= size
            self.values[node] = value
