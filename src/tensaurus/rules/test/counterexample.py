"""Show where a rule's two sides differ, so that a person can follow it."""

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

TOLERANCE = 1e-9  # largest difference from rounding, as a fraction of the tensor's largest element
MAX_SHOWN_ELEMENTS = 12  # elements of an input that are shown


@dataclass(frozen=True)
class Counterexample:
    """An instance on which the sides differ: elements of its leaves by name, and both results of one root."""

    instance: Instance
    inputs: Mapping[str, Array]
    left: Array
    right: Array
    root: int
    field: str

    @property
    def index(self) -> tuple[int, ...]:
        """The index of the first element that differs; () where the shapes differ."""
        if self.left.shape != self.right.shape:
            return ()
        differing = _differing_elements(self.left, self.right)
        return tuple(int(k) for k in np.argwhere(differing)[0]) if differing.any() else ()

    @property
    def is_finite(self) -> bool:
        """Whether both sides are finite numbers at that index."""
        if self.left.shape != self.right.shape or self.left.dtype.kind != "f":
            return True
        return bool(np.isfinite(self.left[self.index]) and np.isfinite(self.right[self.index]))

    def __str__(self) -> str:
        """Return one line; rule files keep it as the evidence of rules tagged `off`."""
        if self.left.shape != self.right.shape:
            how = f"the shapes are {list(self.left.shape)} and {list(self.right.shape)}"
        else:
            left, right = self.left[self.index], self.right[self.index]
            how = f"{_number(left)} is not {_number(right)}, at {list(self.index)}"
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
            shown = ", ".join(_number(v) for v in values.ravel()[:MAX_SHOWN_ELEMENTS])
            more = ", ..." if values.size > MAX_SHOWN_ELEMENTS else ""
            kind = self.instance.nodes[name].tensor
            lines.append(f"  {name} = {kind.dtype}{list(kind.shape)} {{{shown}{more}}}")
        return "\n".join([f"  {self}", *lines])


def results_differ(left: Array, right: Array, field: Field) -> bool:
    """Return whether two results in a field differ; floats must differ by more than rounding."""
    if left.shape != right.shape:
        return True
    if field.name == "reals" and "f" in (left.dtype.kind, right.dtype.kind):
        return bool(_differing_elements(left, right).any())
    return not field.equal(left, right)


def _differing_elements(left: Array, right: Array) -> Array:
    """Return where two results of one shape differ; floats must differ by more than rounding.

    Two elements of which none is finite are equal: a law need not say which of inf and NaN comes out.
    """
    if "f" not in (left.dtype.kind, right.dtype.kind):
        return np.asarray(np.not_equal(left, right), bool)
    a, b = left.astype(np.float64), right.astype(np.float64)
    fine, other = np.isfinite(a), np.isfinite(b)
    scale = np.max(np.abs(a), initial=1.0, where=fine)
    with np.errstate(all="ignore"):
        return np.asarray((fine != other) | (fine & other & (np.abs(a - b) > TOLERANCE * scale)))


def _number(value: object) -> str:
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
