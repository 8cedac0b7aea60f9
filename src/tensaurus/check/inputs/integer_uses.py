"""Finds how a program uses its integer inputs: as numbers to compute with, or as indices into other tensors.

The operators' expressions show it: where an index of a read is itself read from a tensor, as in Gather, the
elements of this tensor are indices, and the extent of the dimension that they index bounds them: of
Gather(table[5, 8], i) the input i holds indices from -5 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tensaurus.expr.ir.scope import Body, Call, Read, Scope, Select, Source, Tensor
from tensaurus.expr.ir.walk import children, lookups_in, sizes
from tensaurus.expr.sizes.size import Size
from tensaurus.graph.ir.node import INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType

Limits = tuple[int, int]

# The inputs from which the elements of a tensor come, and whether they come unchanged.
Origins: TypeAlias = dict[str, bool]


@dataclass(frozen=True)
class IntegerUses:
    """The integer inputs of a program by their uses.

    index_limits     least and largest index, of inputs whose elements are indices into another tensor
    unrestricted     inputs that are computed with and are never indices or sizes, so that any number will do
    loop_counts      inputs that say how many rounds a Loop has
    turning_numbers  of unrestricted inputs, the numbers at which a comparison, a rounding or the like turns

    An integer input in none of the first three may hold indices or sizes whose limits are unknown.
    """

    index_limits: Mapping[str, Limits] = field(default_factory=dict)
    unrestricted: frozenset[str] = frozenset()
    loop_counts: frozenset[str] = frozenset()
    turning_numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _TensorRead:
    """One read of a tensor by an expression: its elements unchanged, changed, or as indices within limits."""

    tensor: Tensor
    is_unchanged: bool = False
    index_limits: tuple[object, object] | None = None


def find_integer_uses(program: Program) -> IntegerUses:
    """Return the integer inputs of a program by their uses."""
    names = {
        node.attribute("name")
        for node in program.inputs
        if isinstance(node.types[0], TensorType) and node.types[0].dtype.startswith(("int", "uint"))
    }
    analysis = _UseAnalysis()
    analysis.visit(program, {node: {node.attribute("name"): True} for node in program.inputs})
    limits = {  # an index into several tensors must be valid in all of them
        name: (max(low for low, _ in bounds), min(high for _, high in bounds))
        for name, bounds in analysis.limits.items()
        if name in names and name not in analysis.unknown
    }
    return IntegerUses(
        {name: (low, high) for name, (low, high) in limits.items() if low <= high},
        frozenset(names - analysis.unknown - set(analysis.limits) - analysis.loop_counts),
        frozenset((names & analysis.loop_counts) - analysis.unknown - set(analysis.limits)),
    )


def shared_index_limits(a: Program, b: Program) -> dict[str, Limits]:
    """Return by inputs the limits of indices that are valid in both programs; of `a` where none is."""
    one, other = find_integer_uses(a).index_limits, find_integer_uses(b).index_limits
    shared = {
        name: (max(low, other[name][0]), min(high, other[name][1])) if name in other else (low, high)
        for name, (low, high) in one.items()
    }
    return {name: (low, high) if low <= high else one[name] for name, (low, high) in shared.items()}


class _UseAnalysis:
    """Follows the elements of inputs through a program and collects their uses."""

    def __init__(self) -> None:
        self.limits: dict[str, list[Limits]] = {}
        self.unknown: set[str] = set()
        self.loop_counts: set[str] = set()

    def visit(self, program: Program, origins: dict[Node, Origins]) -> None:
        """Find the origins of every node; `origins` has those of the program's inputs, and is filled in."""
        for node in program.nodes:
            owner = node.args[0] if node.op is ITEM else node
            assert owner is not None
            if node.op is INPUT or not any(origins.get(a) for a in owner.args if a is not None):
                continue
            if isinstance(owner.op, Op):
                if node.op is ITEM or len(node.types) == 1:  # of several outputs, each ITEM is analyzed alone
                    origins[node] = self._visit_declared(owner, node, origins)
            elif owner.op is OPAQUE and node is owner:
                origins[node] = self._visit_opaque(node, origins)
            else:
                origins[node] = origins.get(owner, {})

    def _visit_declared(self, owner: Node, node: Node, origins: Mapping[Node, Origins]) -> Origins:
        """Return the origins of a declared operator's output; record the inputs that it uses as indices."""
        assert isinstance(owner.op, Op)
        kinds = owner.arg_types()
        scope = owner.op.scopes(kinds, owner.attrs)[node.attribute("index") if node is not owner else 0]
        origins_of: dict[Tensor, Origins] = {
            leaf: origins.get(arg, {})
            for leaf, arg in zip(owner.op.tensors(kinds), owner.args, strict=False)
            if leaf is not None and arg is not None
        }
        result: Origins = {}
        for use in _reads_of(scope):
            for name, is_unchanged in origins_of.get(use.tensor, {}).items():
                if use.index_limits is None:
                    result[name] = result.get(name, True) and is_unchanged and use.is_unchanged
                    continue
                low, high = use.index_limits
                if is_unchanged and isinstance(low, int) and isinstance(high, int):
                    self.limits.setdefault(name, []).append((low, high))
                else:
                    self.unknown.add(name)
        return result

    def _visit_opaque(self, node: Node, origins: Mapping[Node, Origins]) -> Origins:
        """Visit the bodies of an opaque node; return its origins: all of its arguments', changed.

        The condition of an If chooses a branch and holds no index; other inputs of unknown operators may.
        """
        form = node.attribute("form")
        # the node's own inputs, then what its bodies read from the program around it
        own, captured = node.args[: form.inputs], node.args[form.inputs :]
        mixed = {name: False for arg in node.args if arg is not None for name in origins.get(arg, {})}
        if form.operator == "Loop" and own[0] is not None:
            counts = origins.get(own[0], {}).items()
            self.loop_counts.update(name for name, is_unchanged in counts if is_unchanged)
        if form.operator != "If":
            read = own[1:] if form.operator == "Loop" else own
            self.unknown.update(name for a in read if a is not None for name in origins.get(a, {}))
        for _, body in form.bodies:
            inner: dict[Node, Origins] = {
                inside: dict(origins.get(value, {}))
                for inside, value in zip(body.captured, captured, strict=True)
                if value is not None
            }
            self.visit(body, inner)
        return mixed


def _reads_of(scope: Scope) -> Iterator[_TensorRead]:
    """Yield every read of a tensor by the expression."""
    seen: set[int] = set()

    def visit(body: Body, is_unchanged: bool) -> Iterator[_TensorRead]:
        for size in sizes(body):
            yield from reads_in_size(size)
        match body:
            case Read(source, _, _):
                yield from read(source, is_unchanged)
            case Call(fn, args):
                # conversions to integer types keep an index, all other functions change it
                kept = is_unchanged and fn.startswith(("to_int", "to_uint"))
                for arg in args:
                    yield from visit(arg, kept)
            case _:
                for child in children(body):
                    yield from visit(child, is_unchanged and isinstance(body, Select))

    def read(source: Source, is_unchanged: bool) -> Iterator[_TensorRead]:
        if isinstance(source, Tensor):
            yield _TensorRead(source, is_unchanged)
        elif isinstance(source, Scope) and id(source) not in seen:
            seen.add(id(source))
            yield from visit(source.body, is_unchanged)

    def reads_in_size(size: Size) -> Iterator[_TensorRead]:
        for atom in lookups_in(size):
            source = atom.read.source
            if isinstance(source, Tensor):
                yield _TensorRead(source, index_limits=(atom.low, atom.high))
            else:  # the index is computed: its limits are unknown
                for use in read(source, False):
                    yield _TensorRead(use.tensor, index_limits=(None, None))
            for index in atom.read.indices:
                yield from reads_in_size(index)

    yield from visit(scope.body, True)
