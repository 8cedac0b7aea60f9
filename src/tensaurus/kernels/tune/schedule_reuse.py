"""Expressions that reduce alike are tuned as one (ETO, VLDB'22, section 6: what is tuned once is reused).

    L[i:9](max(0, add(sum[r:64](mul(x0[i, r], x1[r])), x2[i])))  and  L[i:9](sum[r:64](mul(x1[i, r], x0[r])))

Which loops are fast depends on what is added up and how it is read, and little on what is computed before of
its operands and after of its results.  So schedules are kept for reductions, too, with their tensors by their
roles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tensaurus.expr.ir.scope import Call
from tensaurus.expr.ir.walk import bodies
from tensaurus.kernels.stages.loop_nest import CHEAP
from tensaurus.kernels.stages.sketch import Schedule, parse, show
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.kernels.tune.operand_access import Operand, operands

__all__ = ["Reduced", "reduced"]

LARGEST = 2  # operands that decide how a reduction is scheduled


@dataclass(frozen=True)
class Reduced:
    """What an expression reduces.

    text   the same for expressions that reduce alike, whatever their tensors are called
    roles  of the tensors' names
    """

    text: str
    roles: Mapping[str, str]

    def general(self, schedule: Schedule) -> str | None:
        """The schedule's text, with roles for names; None where it names what no reduction reads."""
        try:
            return _renamed(show(schedule), self.roles)
        except KeyError:
            return None

    def own(self, text: str) -> Schedule | None:
        """The schedule of such a text, with the names here; None where one is missing."""
        names = {role: name for name, role in self.roles.items()}
        try:
            return parse(_renamed(text, names))
        except (KeyError, ValueError):
            return None


def reduced(stages: Sequence[Stage], constants: frozenset[str] = frozenset()) -> Reduced | None:
    """Of stages as schedules speak of them, some of whose inputs are `constants`; None where nothing is
    reduced."""
    lines: list[str] = []
    roles: dict[str, str] = {}
    for stage in stages:
        if not stage.reduced:
            continue
        found = sorted(operands(stage), key=_size, reverse=True)
        for operand in found:
            roles.setdefault(operand.name, f"o{len(roles)}")
        roles.setdefault(stage.tensor.name, f"o{len(roles)}")
        dear = sum(isinstance(body, Call) and body.fn not in CHEAP for body in bodies(stage.body))
        reads = (_text(operand, stage, constants, roles) for operand in found[:LARGEST])
        own, over = (",".join(str(extent(a)) for a in axes) for axes in (stage.axes, stage.reduced))
        kind = f"{stage.tensor.dtype} {stage.monoid}[{own} over {over}]"
        lines.append(f"{kind} of {'; '.join(reads)}, with {dear} dear functions")
    return Reduced("\n".join(lines), roles) if lines else None


def _size(operand: Operand) -> int:
    return prod(n for n in operand.read.source.shape if isinstance(n, int))


def _text(operand: Operand, stage: Stage, constants: frozenset[str], roles: Mapping[str, str]) -> str:
    """How it is read: of each dimension the extent and the steps of axes, which are numbered."""
    number = {a: k for k, a in enumerate((*stage.axes, *stage.reduced))}
    forms = []
    for form, size in zip(operand.forms, operand.read.source.shape, strict=True):
        steps = sorted((number[a], n) for a, n in (form or {}).items())
        forms.append(f"{size}:" + ("?" if form is None else "+".join(f"{n}*{k}" for k, n in steps)))
    edge = "" if operand.read.outside is None else "|"
    kind = "constant" if operand.name in constants else roles[operand.name]
    return f"{kind}[{', '.join(forms)}]{edge}"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A schedule's text with other names for tensors.  Raises KeyError for a tensor that has none."""

    def other(match: re.Match[str]) -> str:
        return names[match[0]]

    # names stand in `pack(x1=...`, `band(s0=...` and `c=x0@1+s2@0`, and are followed by = or @
    return re.sub(r"(?<=\()(?:x|s|o)\d+(?==)|(?:x|s|o)\d+(?=@)", other, text)
