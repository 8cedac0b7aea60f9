"""Where a rule's two sides differ, as a person can follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent

import numpy as np

from tensaurus.expr.evaluate.fields import Array, Field
from tensaurus.graph.ir.node import INPUT
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import format_program
from tensaurus.rules.test.instances import Instance

ROUNDED = 1e-9  # of a tensor's largest element
MOST = 12  # elements of an input that are shown


@dataclass(frozen=True)
class Counterexample:
    """An instance of a rule, elements of its leaves by name, and those of both sides of one root."""

    instance: Instance
    inputs: Mapping[str, Array]
    left: Array
    right: Array
    root: int
    field: str

    @property
    def place(self) -> tuple[int, ...]:
        """The first element that differs."""
        if self.left.shape != self.right.shape:
            return ()
        apart = _apart(self.left, self.right)
        return tuple(int(k) for k in np.argwhere(apart)[0]) if apart.any() else ()

    @property
    def finite(self) -> bool:
        """Whether both are numbers there."""
        if self.left.shape != self.right.shape or self.left.dtype.kind != "f":
            return True
        return bool(np.isfinite(self.left[self.place]) and np.isfinite(self.right[self.place]))

    def __str__(self) -> str:
        """One line."""
        if self.left.shape != self.right.shape:
            how = f"the shapes are {list(self.left.shape)} and {list(self.right.shape)}"
        else:
            left, right = self.left[self.place], self.right[self.place]
            how = f"{_number(left)} is not {_number(right)}, at {list(self.place)}"
        return f"{how} of {self.field}, for {self.instance}"

    @property
    def text(self) -> str:
        """Both sides with attributes and sizes, the inputs, and the element that differs."""
        sides = {"left": self.instance.left, "right": self.instance.right}
        leaves = tuple(leaf for leaf in self.instance.leaves if leaf.op is INPUT)
        lines = []
        for side, roots in sides.items():
            program = Program(leaves, ((side, roots[self.root]),))
            lines += [f"  {side}:", indent(format_program(program).rstrip(), "    ")]
        for name, values in sorted(self.inputs.items()):
            shown = ", ".join(_number(v) for v in values.ravel()[:MOST])
            more = ", ..." if values.size > MOST else ""
            kind = self.instance.nodes[name].tensor
            lines.append(f"  {name} = {kind.dtype}{list(kind.shape)} {{{shown}{more}}}")
        return "\n".join([f"  {self}", *lines])


def differ(left: Array, right: Array, field: Field) -> bool:
    """Whether two results of a field are not the same; where a float is rounded, by more than that."""
    if left.shape != right.shape:
        return True
    if field.name == "reals" and "f" in (left.dtype.kind, right.dtype.kind):
        return bool(_apart(left, right).any())
    return not field.equal(left, right)


def _apart(left: Array, right: Array) -> Array:
    """Where two results of one shape differ: floats by more than what is rounded.

    Where neither is finite they are alike: a law need not say what kind of nothing comes out.
    """
    if "f" not in (left.dtype.kind, right.dtype.kind):
        return np.asarray(np.not_equal(left, right), bool)
    a, b = left.astype(np.float64), right.astype(np.float64)
    fine, other = np.isfinite(a), np.isfinite(b)
    scale = np.max(np.abs(a), initial=1.0, where=fine)
    with np.errstate(all="ignore"):
        return np.asarray((fine != other) | (fine & other & (np.abs(a - b) > ROUNDED * scale)))


def _number(value: object) -> str:
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
