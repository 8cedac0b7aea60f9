"""What a program does with its integer inputs: compute with their values, or look up places that they name.

Read from the operators' expressions: an index of a read that is itself looked up in a tensor has bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensaurus.expr.ir.scope import Body, Call, Read, Scope, Select, Source, Tensor
from tensaurus.expr.ir.walk import children, looked, sizes
from tensaurus.expr.sizes.size import Size
from tensaurus.graph.ir.node import INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType

Limits = tuple[int, int]


@dataclass(frozen=True)
class Indices:
    """limits  of inputs whose elements name places in another tensor: the least and the largest place
    free    inputs whose values are computed with and never name a place or a size: any number will do
    trips   inputs that say how many rounds a loop has
    meets   of the free ones, the numbers at which something computed from them turns

    An integer input in neither may name places or sizes that nobody can tell.
    """

    limits: Mapping[str, Limits] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    trips: frozenset[str] = frozenset()
    meets: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Use:
    """How an expression reads a tensor: its elements as they are, changed, or as places within limits."""

    tensor: Tensor
    whole: bool = False
    places: tuple[object, object] | None = None


def indices_of(program: Program) -> Indices:
    """The integer inputs of a program by what they are used for."""
    names = {
        node.attribute("name")
        for node in program.inputs
        if isinstance(node.types[0], TensorType) and node.types[0].dtype.startswith(("int", "uint"))
    }
    run = _Uses()
    run.visit(program, {node: {node.attribute("name"): True} for node in program.inputs})
    limits = {
        name: (max(low for low, _ in bounds), min(high for _, high in bounds))
        for name, bounds in run.limits.items()
        if name in names and name not in run.unknown
    }
    return Indices(
        {name: (low, high) for name, (low, high) in limits.items() if low <= high},
        frozenset(names - run.unknown - set(run.limits) - run.trips),
        frozenset((names & run.trips) - run.unknown - set(run.limits)),
    )


def shared_places(a: Program, b: Program) -> dict[str, Limits]:
    """The limits of the places that integer inputs name in both programs; where none is in both, in `a`."""
    one, other = indices_of(a).limits, indices_of(b).limits
    shared = {
        name: (max(low, other[name][0]), min(high, other[name][1])) if name in other else (low, high)
        for name, (low, high) in one.items()
    }
    return {name: (low, high) if low <= high else one[name] for name, (low, high) in shared.items()}


class _Uses:
    """For every node the inputs that its elements come from, and whether they come unchanged."""

    def __init__(self) -> None:
        self.limits: dict[str, list[Limits]] = {}
        self.unknown: set[str] = set()
        self.trips: set[str] = set()

    def visit(self, program: Program, carried: dict[Node, dict[str, bool]]) -> dict[Node, dict[str, bool]]:
        for node in program.nodes:
            owner = node.args[0] if node.op is ITEM else node
            assert owner is not None
            if node.op is INPUT or not any(carried.get(a) for a in owner.args if a is not None):
                continue
            if isinstance(owner.op, Op):
                if node.op is ITEM or len(node.types) == 1:
                    carried[node] = self._declared(owner, node, carried)
            elif owner.op is OPAQUE and node is owner:
                carried[node] = self._opaque(node, carried)
            else:
                carried[node] = carried.get(owner, {})
        return carried

    def _declared(
        self, owner: Node, node: Node, carried: Mapping[Node, Mapping[str, bool]]
    ) -> dict[str, bool]:
        assert isinstance(owner.op, Op)
        kinds = owner.kinds()
        scope = owner.op.scopes(kinds, owner.attrs)[node.attribute("index") if node is not owner else 0]
        inputs: dict[Tensor, Mapping[str, bool]] = {
            leaf: carried.get(arg, {})
            for leaf, arg in zip(owner.op.tensors(kinds), owner.args, strict=False)
            if leaf is not None and arg is not None
        }
        result: dict[str, bool] = {}
        for use in _uses(scope):
            for name, same in inputs.get(use.tensor, {}).items():
                if use.places is None:
                    result[name] = result.get(name, True) and same and use.whole
                    continue
                low, high = use.places
                if same and isinstance(low, int) and isinstance(high, int):
                    self.limits.setdefault(name, []).append((low, high))
                else:
                    self.unknown.add(name)
        return result

    def _opaque(self, node: Node, carried: Mapping[Node, Mapping[str, bool]]) -> dict[str, bool]:
        """A condition chooses a branch and names no place; what else an unknown operator reads may."""
        form = node.attribute("form")
        own, captured = node.args[: form.inputs], node.args[form.inputs :]
        mixed = {name: False for arg in node.args if arg is not None for name in carried.get(arg, {})}
        if form.operator == "Loop" and own[0] is not None:
            self.trips.update(name for name, same in carried.get(own[0], {}).items() if same)
        if form.operator != "If":
            read = own[1:] if form.operator == "Loop" else own
            self.unknown.update(name for a in read if a is not None for name in carried.get(a, {}))
        for _, body in form.bodies:
            inner: dict[Node, dict[str, bool]] = {
                place: dict(carried.get(value, {}))
                for place, value in zip(body.captured, captured, strict=True)
                if value is not None
            }
            self.visit(body, inner)
        return mixed


def _uses(scope: Scope) -> Iterator[_Use]:
    """Every way that the expression reads a tensor."""
    seen: set[int] = set()

    def visit(body: Body, whole: bool) -> Iterator[_Use]:
        for size in sizes(body):
            yield from placed(size)
        match body:
            case Read(source, _, _):
                yield from read(source, whole)
            case Call(fn, args):
                kept = whole and fn.startswith(("to_int", "to_uint"))
                for arg in args:
                    yield from visit(arg, kept)
            case _:
                for child in children(body):
                    yield from visit(child, whole and isinstance(body, Select))

    def read(source: Source, whole: bool) -> Iterator[_Use]:
        if isinstance(source, Tensor):
            yield _Use(source, whole)
        elif isinstance(source, Scope) and id(source) not in seen:
            seen.add(id(source))
            yield from visit(source.body, whole)

    def placed(size: Size) -> Iterator[_Use]:
        for atom in looked(size):
            source = atom.read.source
            if isinstance(source, Tensor):
                yield _Use(source, places=(atom.low, atom.high))
            else:  # a place that is computed: within unknown limits
                for use in read(source, False):
                    yield _Use(use.tensor, places=(None, None))
            for index in atom.read.indices:
                yield from placed(index)

    yield from visit(scope.body, True)
