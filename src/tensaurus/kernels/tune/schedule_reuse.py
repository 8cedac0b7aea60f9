"""Describes what an expression reduces, so that its schedules are reused for others (ETO section 6).

These two have the same form, which is below them:

    L[i:9](max(0, add(sum[r:64](mul(x0[i, r], x1[r])), x2[i])))  and  L[i:9](sum[r:64](mul(x1[i, r], x0[r])))
    float32 sum[9 over 64] of o0[9:1*0, 64:1*1]; o1[64:1*1], with 0 dear functions

9:1*0 is a dimension of extent 9 that axis 0, which is i, moves by 1 element at a step; 64:1*1 is moved by r.
Which loops are fast depends on the reduction and on how it reads its operands, and little on elementwise
functions before and after. So schedules are stored by the form, too, with roles (o0, o1, ...) in place of
tensor names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from tensaurus.expr.ir.scope import Call
from tensaurus.expr.ir.walk import bodies
from tensaurus.kernels.stages.loop_nest import CHEAP_FUNCTIONS
from tensaurus.kernels.stages.sketch import Schedule, format_schedule, parse_schedule
from tensaurus.kernels.stages.stage import Stage, extent
from tensaurus.kernels.tune.operand_access import OperandAccess, operand_accesses

__all__ = ["FORM_LINE", "ReductionForm", "count_form_work", "reduction_form"]

DECISIVE_OPERANDS = 2  # the largest operands of a reduction, which decide how it is scheduled


@dataclass(frozen=True)
class ReductionForm:
    """The form of an expression's reductions.

    text   equal for expressions that reduce alike, whatever the names of their tensors
    roles  the role of each tensor in the text, by its name
    """

    text: str
    roles: Mapping[str, str]

    def to_role_text(self, schedule: Schedule) -> str | None:
        """Formats a schedule with roles for tensor names; None if it names a tensor without a role."""
        try:
            return _rename_tensors(format_schedule(schedule), self.roles)
        except KeyError:
            return None

    def from_role_text(self, text: str) -> Schedule | None:
        """Parses a schedule with roles, which become names; None if a role is missing here."""
        names = {role: name for name, role in self.roles.items()}
        try:
            return parse_schedule(_rename_tensors(text, names))
        except (KeyError, ValueError):
            return None


def reduction_form(stages: Sequence[Stage], constants: frozenset[str] = frozenset()) -> ReductionForm | None:
    """Returns the form of `schedulable_stages` with these constant inputs; None without reductions."""
    lines: list[str] = []
    roles: dict[str, str] = {}
    for stage in stages:
        if not stage.reduced:
            continue
        accesses = sorted(operand_accesses(stage), key=_element_count, reverse=True)
        for operand in accesses:
            roles.setdefault(operand.name, f"o{len(roles)}")
        roles.setdefault(stage.tensor.name, f"o{len(roles)}")
        dear = sum(isinstance(body, Call) and body.fn not in CHEAP_FUNCTIONS for body in bodies(stage.body))
        reads = (_format_access(operand, stage, constants, roles) for operand in accesses[:DECISIVE_OPERANDS])
        extents, over = (",".join(str(extent(a)) for a in axes) for axes in (stage.axes, stage.reduced))
        kind = f"{stage.tensor.dtype} {stage.monoid}[{extents} over {over}]"
        lines.append(f"{kind} of {'; '.join(reads)}, with {dear} dear functions")
    return ReductionForm("\n".join(lines), roles) if lines else None


# a line of a form, as `reduction_form` writes: dtype, monoid, extents, reduced extents, operands, functions
FORM_LINE = re.compile(r"(\w+) (\w+)\[([\d,]*) over ([\d,]*)\] of (.*), with (\d+) dear functions")
_DIMENSION = re.compile(r"(\d+):")  # in the text of an operand


@cache
def count_form_work(text: str) -> tuple[int, int]:
    """Counts the operations of a form, and the bytes of its results and decisive operands.

        float32 sum[9 over 64] of o0[9:1*0, 64:1*1]; o1[64:1*1], ...   ->   1152 operations, 2596 bytes

    Each element that is reduced counts as two operations, a multiplication and an addition.
    """
    operations = moved = 0
    for line in text.splitlines():
        match = FORM_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not the text of a form: {line}")
        dtype, _, kept, reduced, operands, _ = match.groups()
        kept_count = prod(map(int, filter(None, kept.split(","))))
        reduced_count = prod(map(int, filter(None, reduced.split(","))))
        sizes = [prod(map(int, _DIMENSION.findall(operand))) for operand in operands.split(";")]
        operations += 2 * kept_count * reduced_count
        moved += np.dtype(dtype).itemsize * (kept_count + sum(sizes))
    return operations, moved


def _element_count(operand: OperandAccess) -> int:
    return prod(n for n in operand.read.source.shape if isinstance(n, int))


def _format_access(
    operand: OperandAccess, stage: Stage, constants: frozenset[str], roles: Mapping[str, str]
) -> str:
    """Formats a read: for each dimension its extent and the coefficients of axes, which are numbered."""
    number = {a: k for k, a in enumerate((*stage.axes, *stage.reduced))}
    forms = []
    for form, size in zip(operand.coefficients, operand.read.source.shape, strict=True):
        steps = sorted((number[a], n) for a, n in (form or {}).items())
        forms.append(f"{size}:" + ("?" if form is None else "+".join(f"{n}*{k}" for k, n in steps)))
    edge = "" if operand.read.outside is None else "|"
    kind = "constant" if operand.name in constants else roles[operand.name]
    return f"{kind}[{', '.join(forms)}]{edge}"


def _rename_tensors(text: str, names: Mapping[str, str]) -> str:
    """Renames the tensors in a schedule's text. Raises KeyError for a tensor without a new name."""

    def other(match: re.Match[str]) -> str:
        return names[match[0]]

    # names stand in `pack(x1=...`, `band(s0=...` and `c=x0@1+s2@0`, and are followed by = or @
    return re.sub(r"(?<=\()(?:x|s|o)\d+(?==)|(?:x|s|o)\d+(?=@)", other, text)
