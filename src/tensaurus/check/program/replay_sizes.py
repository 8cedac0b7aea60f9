"""Chooses numbers for the sizes that programs leave open, before any value is drawn.

The shape of an array that is drawn for a tensor of [N + max(-5, -N), M] would not determine N: so N and M get
numbers first, and every shape is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from tensaurus.expr.sizes.size import Size, Symbol, atoms, evaluate
from tensaurus.graph.ir.node import ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import TensorType

__all__ = ["Sizes", "shape_at", "size_choices"]

Sizes = Mapping[Symbol, int]

LEAST_SIZE = 4  # the smallest of the numbers that open sizes get at first
LARGER_LEAST_SIZES = (13, 40)  # tried where programs do not run at LEAST_SIZE: a window may be wider
DISTINCT_SIZES = 4  # open sizes that differ; a fifth is as large as the first
MAX_ELEMENTS = 1 << 22  # of one tensor, at numbers other than the smallest


def size_choices(programs: Sequence[Program]) -> Iterator[Sizes]:
    """Yield numbers for the open sizes of programs with the same inputs, those most likely to fit first.

    Sizes of different names differ at first, later they are equal.  No input is empty where that is possible:
    [N, M] is [4, 5], [N + max(-5, -N)] is [8] at N = 13.
    """
    symbols = _open_symbols(programs)
    if not symbols:
        yield {}
        return
    plans = [
        {s: LEAST_SIZE + k % DISTINCT_SIZES for k, s in enumerate(symbols)},
        dict.fromkeys(symbols, LEAST_SIZE),
    ]
    plans += [{s: least + k % DISTINCT_SIZES for k, s in enumerate(symbols)} for least in LARGER_LEAST_SIZES]
    inputs = [node.types[0] for program in programs for node in program.inputs]
    yielded: list[Sizes] = []
    for least in (1, 0):  # plans without empty inputs first
        for place, plan in enumerate(plans):  # two are tried however large the tensors are
            shapes = [shape_at(kind, plan) for kind in inputs if isinstance(kind, TensorType)]
            fits = all(n >= least for shape in shapes for n in shape)
            if fits and plan not in yielded and (place < 2 or _is_small(programs, plan)):
                yielded.append(plan)
                yield plan


def shape_at(kind: TensorType, sizes: Sizes) -> list[int]:
    """Return the shape of a tensor at these sizes; other symbols are LEAST_SIZE."""
    return [size_at(n, sizes) for n in kind.shape]


def size_at(size: Size, sizes: Sizes) -> int:
    """Return a size as a number; symbols not among `sizes` are LEAST_SIZE."""
    return int(evaluate(size, lambda atom: sizes.get(atom, LEAST_SIZE)))  # type: ignore[call-overload]


def _is_small(programs: Sequence[Program], sizes: Sizes) -> bool:
    kinds = (kind for program in programs for node in program.nodes for kind in node.types)
    return all(prod(shape_at(kind, sizes)) <= MAX_ELEMENTS for kind in kinds if isinstance(kind, TensorType))


def _open_symbols(programs: Sequence[Program]) -> list[Symbol]:
    """Return the open sizes of inputs and of attributes, without those that an opaque node computes."""
    found: dict[Symbol, None] = {}
    decided: set[Symbol] = set()
    for program in programs:
        for node in program.inputs:
            found.update(dict.fromkeys(_symbols_of(node)))
    for program in programs:
        for node in program.nodes:
            owner = node.args[0] if node.op is ITEM else node
            if owner is not None and owner.op is OPAQUE:
                decided.update(symbol for symbol in _symbols_of(node) if symbol not in found)
    for program in programs:
        for node in program.nodes:
            if node.is_declared:
                found.update((s, None) for s in _symbols_of(node) if s not in decided)
    return list(found)


def _symbols_of(node: Node) -> Iterator[Symbol]:
    """Yield the symbols in a node's types."""
    for kind in node.types:
        for size in kind.shape if isinstance(kind, TensorType) else ():
            found = [atom for atom in atoms(size) if isinstance(atom, Symbol)]
            yield from sorted(found, key=str)
