"""Writes an expression of a reduction form, so that what was tuned on one processor can be tuned on another.

    float32 sum[9 over 64] of o0[9:1*0, 64:1*1]; o1[64:1*1], with 0 dear functions
    L[i:9](sum[r:64](mul(x0[i, r], x1[r])))        over float32[9, 64], float32[64]

A form does not say how far a window begins outside its tensor, nor which numbers a fast convolution's tables
have: windows are centred, and the tables are those of the algorithm for these sizes (`best_algorithm`).  An
expression counts only if its own form is the one that was asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil

from tensaurus.expr.ir.expression_text import parse
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.ir.walk import tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.finders.bilinear import best_algorithm
from tensaurus.finders.bilinear.fast_convolution import Convolution, fast_scope
from tensaurus.finders.bilinear.tiling import ConvolutionAxis
from tensaurus.kernels.halide.compile import input_tensors
from tensaurus.kernels.tune.schedule_reuse import FORM_LINE
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.ops import TensorType

__all__ = ["FormExpression", "write_expression"]

OPERAND = re.compile(r"(\w+)\[([^]]*)\](\|?)")


@dataclass(frozen=True)
class FormExpression:
    """An expression with the types of its inputs, and which of these are constant."""

    scope: Scope
    types: tuple[TensorType, ...]
    is_constant: tuple[bool, ...]


@dataclass(frozen=True)
class _Operand:
    """A read: for each dimension its extent and {axis number: coefficient}."""

    is_constant: bool
    dimensions: tuple[tuple[int, dict[int, int]], ...]
    has_outside: bool


@dataclass(frozen=True)
class _Line:
    """One reduction of a form: its extents, those that it reduces, and the operands that the form names."""

    dtype: str
    monoid: str
    extents: tuple[int, ...]
    reduced: tuple[int, ...]
    operands: tuple[_Operand, ...]


def write_expression(form: str, tuner: Tuner) -> FormExpression | None:
    """Return an expression of this form; None where there is none that is known to be."""
    lines = [_parse_line(line) for line in form.splitlines()]
    known = [line for line in lines if line is not None]
    if len(known) < len(lines):
        return None
    made = _write_reduction(known[0]) if len(known) == 1 else _write_fast_convolution(known)
    if made is None:
        return None
    own = tuner.reduction_form(made.scope, made.types, made.is_constant)
    return made if own is not None and own.text == form else None


def _parse_line(line: str) -> _Line | None:
    """Parse a line of a form; None for one with indices that are not affine, or with dear functions."""
    if (match := FORM_LINE.fullmatch(line)) is None or match[6] != "0" or "?" in line:
        return None
    extents, reduced = (tuple(map(int, filter(None, match[k].split(",")))) for k in (3, 4))
    operands = []
    for name, dimensions, edge in OPERAND.findall(match[5]):
        read = []
        for text in filter(None, dimensions.split(", ")):
            size, terms = text.split(":")
            pairs = (term.split("*") for term in terms.split("+") if term)
            read.append((int(size), {int(a): int(c) for c, a in pairs}))
        operands.append(_Operand(name == "constant", tuple(read), edge == "|"))
    return _Line(match[1], match[2], extents, reduced, tuple(operands))


def _write_reduction(line: _Line) -> FormExpression | None:
    """Write one reduction of one operand, or of the product of two."""
    sizes = (*line.extents, *line.reduced)
    names = [*(f"i{k}" for k in range(len(line.extents))), *(f"r{k}" for k in range(len(line.reduced)))]
    reads, types = [], []
    for number, operand in enumerate(line.operands):
        indices = []
        for size, form in operand.dimensions:
            span = 1 + sum(c * (sizes[a] - 1) for a, c in form.items())
            before = max(0, (span - size + 1) // 2) if operand.has_outside else 0
            terms = [names[a] if c == 1 else f"{c}*{names[a]}" for a, c in form.items()] or ["0"]
            indices.append(" + ".join(terms) + (f" - {before}" if before else ""))
        inside = ", ".join(indices) or "()"
        reads.append(f"(x{number}[{inside}] | 0)" if operand.has_outside else f"x{number}[{inside}]")
        types.append(TensorType(line.dtype, tuple(size for size, _ in operand.dimensions)))
    body = reads[0] if len(reads) == 1 else f"mul({', '.join(reads)})"
    over = ", ".join(f"{name}:{n}" for name, n in zip(names[len(line.extents) :], line.reduced, strict=True))
    axes = ", ".join(f"{name}:{n}" for name, n in zip(names, line.extents, strict=False)) or "()"
    text = f"L[{axes}]({line.monoid}[{over}]({body}))"
    try:
        scope = intern_scope(parse(text, {x.name: x for x in input_tensors(types)}))
    except (ValueError, SyntaxError, TypeError):
        return None
    return FormExpression(scope, tuple(types), tuple(operand.is_constant for operand in line.operands))


def _write_fast_convolution(lines: list[_Line]) -> FormExpression | None:
    """Write a convolution that is fast along all its dimensions, without dilation, in steps of 1."""
    rank = (len(lines) - 1) // 2
    data, products = lines[0], lines[rank]
    if len(lines) != 2 * rank + 1 or len(data.operands) != 1 or len(data.extents) != 1 + 2 * rank:
        return None
    if len(data.operands[0].dimensions) != 1 + rank:
        return None
    sizes = [size for size, _ in data.operands[0].dimensions[1:]]
    channels, depth = data.operands[0].dimensions[0][0], products.reduced[0]
    groups = channels // depth
    filters = lines[-1].extents[0] * (lines[-1].extents[1] if groups > 1 else 1)
    axes, algorithms = [], []
    for number, size in enumerate(sizes):
        line = lines[rank + 1 + number]
        made = products.extents[len(products.extents) - rank + number]  # products of a tile
        outputs = line.extents[len(line.extents) - rank + number]
        taps = made - outputs + 1
        tiles = data.extents[1 + number]
        if taps < 2:
            return None
        same = ceil(size / outputs) == tiles and data.operands[0].has_outside
        pad = (taps - 1) // 2 if same else 0
        axes.append(ConvolutionAxis(size, taps, size if same else tiles * outputs, pad=pad))
        try:
            algorithms.append(best_algorithm(outputs, taps))
        except ValueError:  # an algorithm of interleaved parts
            return None
    convolution = Convolution(1, channels, filters, groups, tuple(axes), has_bias=True)
    scope = intern_scope(fast_scope(convolution, tuple(algorithms)))
    read = sorted(tensors(scope), key=lambda x: x.name)
    types = tuple(TensorType(x.dtype, tuple(x.shape)) for x in read)
    return FormExpression(scope, types, (False, *(True for _ in types[1:])))
