"""Programs evaluated node by node by the algebra's own evaluator, in float64 or any field.

Opaque nodes have no expression.  Over the reals they run on onnx's reference evaluator in float64, or on
onnxruntime in the node's own types; elsewhere they are unknown functions of all their arguments.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tensaurus.expr.evaluate.fields import Field
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.integer_types import wrap_to_dtype
from tensaurus.expr.sizes.size import Symbol, atoms, terms_of
from tensaurus.expr.sizes.size import evaluate as value_of
from tensaurus.graph.analysis.conversion_chains import arguments
from tensaurus.graph.analysis.evaluate_node import expression_of
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node, Type
from tensaurus.graph.ir.opaque import Form
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import Array, BackendError
from tensaurus.runtimes.backends.reference.alone import run_alone

# Nodes in the bodies of a loop and of those in it that are evaluated one by one: over the reals it is in a
# process with a limit of its own, where the last answer is looked for.
TURNED, TURNED_OVER_REALS = 50_000, 1_000_000

ANY = 4  # places along a dimension that an unknown function's result has, where only it knows how many

# Elements of an array; ints as int64 and bools; text and complex numbers as they are; lists are sequences,
# None an optional without a value.
Value: TypeAlias = Any


@dataclass(frozen=True)
class Token:
    """A value that a field cannot hold, known only to be equal to itself."""

    digest: bytes


def evaluate(
    program: Program,
    feeds: Mapping[str, Array],
    field: Field,
    *,
    cache: MutableMapping[Node, Value] | None = None,
    taken: set[tuple[Node, bool]] | None = None,
    rounded: bool = False,
) -> dict[str, Value]:
    """Every output by name, in the field.  `feeds` are arrays of elements, ints or bools.

    Values are freed when their last use is past.  With a `cache`, nodes in it are not computed again and
    every value computed is kept there: nodes are interned, so a second program shares what it has in common.
    Into `taken` go the conditional nodes that were met, with their conditions.  Where `rounded`, floats are
    rounded to the type of each node.
    Raises BackendError for a node that cannot be evaluated.
    """
    return evaluate_all([program], feeds, field, cache=cache, taken=taken, rounded=rounded)[0]


class _TooLong(BackendError):
    """More nodes in loops than are evaluated one by one."""


def evaluate_all(
    programs: Sequence[Program],
    feeds: Mapping[str, Array],
    field: Field,
    *,
    cache: MutableMapping[Node, Value] | None = None,
    taken: set[tuple[Node, bool]] | None = None,
    rounded: bool = False,
    sizes: Mapping[Symbol, int] = MappingProxyType({}),
) -> list[dict[str, Value]]:
    """`evaluate` for several programs at once: what they share is computed once and freed early.

    `sizes` are those that no input has as a dimension: of an input of shape [min(N, 5)], what N is.
    """
    held: dict[Node, Value] = {}
    run = _Run(field, next((p.frame for p in programs if p.frame is not None), None), programs)
    run.taken, run.rounded = set() if taken is None else taken, rounded
    run.sizes.update(sizes)
    for program in programs:
        for node in program.inputs:
            name = node.attribute("name")
            if name not in feeds:
                raise BackendError(f"reference: input {name!r} is missing")
            held[node] = feeds[name]
    roots = [node for program in programs for _, node in program.outputs]
    found = run.values(roots, held, cache)
    places = iter(found)
    return [{name: next(places) for name, _ in program.outputs} for program in programs]


class _Run:
    """One evaluation: the field, sizes known by now, and what tells unknown functions apart."""

    def __init__(self, field: Field, frame: Any, programs: Sequence[Program] = (), outer: _Run | None = None):
        self.field = field
        self.frame = frame
        # a body reads the sizes around it; its own are other symbols, new in every round of a loop
        self.sizes: dict[Any, int] = {} if outer is None else dict(outer.sizes)
        self.outer = outer
        self.turned: list[int] = [0] if outer is None else outer.turned  # nodes in the bodies of loops
        self.most = TURNED_OVER_REALS if field.name == "reals" else TURNED
        self.forms: dict[Any, int] = {} if outer is None else outer.forms
        self.labels: dict[Node, Any] = {} if outer is None else outer.labels
        self.taken: set[tuple[Node, bool]] = set() if outer is None else outer.taken
        self.rounded: bool = outer is not None and outer.rounded
        for program in programs:
            others = {n for other in programs if other is not program for n in other.nodes}
            effects = [n for n in program.nodes if any(key == "identity" for key, _ in n.attrs)]
            # the k-th effect of a model read twice is the same effect
            own = (n for n in effects if n not in others)
            self.labels.update((n, ("own", k)) for k, n in enumerate(own))
            self.labels.update((n, n.attribute("identity")) for n in effects if n in others)

    def values(
        self, roots: Sequence[Node], held: dict[Node, Value], cache: MutableMapping[Node, Value] | None = None
    ) -> list[Value]:
        """The roots' values; `held` has those of inputs, and is emptied on the way."""
        for node, value in held.items():
            self.check(node.types[0], value, node)
        if cache is not None:
            held.update(cache)
        order = list(_order(roots, held))
        left = Counter(arg for node in order for arg in _needs(node))
        left.update(roots)
        for node in order:
            held[node] = value = self.node(node, held)
            if cache is not None:
                cache[node] = value
            for arg in set(_needs(node)):
                left[arg] -= _needs(node).count(arg)
                if not left[arg]:
                    del held[arg]
        return [held[root] for root in roots]

    def node(self, node: Node, held: Mapping[Node, Value]) -> Value:
        if node.op is CONSTANT:
            return lifted(node.attribute("data").array, self.field)
        if node.op is ITEM and not _owner(node).declared:
            found = held[_owner(node)][node.attribute("index")]
            self.check(node.types[0], found, node)
            return found
        if node.declared or node.op is ITEM:
            try:
                return self.declared(node, held)
            except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise BackendError(f"reference: {_owner(node).op}: {error}") from error
        found = self.opaque(node, [None if a is None else held[a] for a in node.args])
        if len(node.types) > 1:
            return found
        self.check(node.types[0], found[0], node)
        return found[0]

    def declared(self, node: Node, held: Mapping[Node, Value]) -> Value:
        """One output of an operator, by its expression."""
        owner, index = _owner(node), node.attribute("index") if _owner(node) is not node else 0
        scope, read = expression_of(owner, index)
        leaves: dict[Any, Array] = {}
        for leaf, arg in read.items():
            value = held[arg]
            if not isinstance(value, np.ndarray):
                raise ValueError("a value that the field cannot hold")
            leaves[leaf] = value
        return self.conformed(interpret(scope, leaves, self.field, self.sizes), owner.types[index])

    def conformed(self, value: Array, kind: Type) -> Array:
        """The value in the form of its type: elements for floats, integers wrapped to their width."""
        assert isinstance(kind, TensorType)
        if kind.dtype.startswith(("float", "bfloat")):
            found = value if self.field.has_elements(value) else self.field.call("to_float32", [value])
            if not self.rounded:
                return found
            with np.errstate(all="ignore"):
                return np.asarray(found.astype(numpy_dtype(kind.dtype)).astype(np.float64))
        if self.field.has_elements(value) or value.dtype.kind not in "iub":
            return value
        if kind.dtype == "bool":
            return value.astype(bool, copy=False)
        return wrap_to_dtype(value, kind.dtype)

    def check(self, kind: Type, value: Value, node: Node) -> None:
        """The value has its type's shape; sizes that are symbols become known from it."""
        if not isinstance(kind, TensorType) or not isinstance(value, np.ndarray):
            return
        fits = value.ndim == kind.rank
        for size, actual in zip(kind.shape, value.shape, strict=False):
            if isinstance(size, int):
                fits &= size == actual
                continue
            terms = terms_of(size)
            if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
                atom = terms[0][0][0]
                if isinstance(atom, Symbol):
                    fits &= self.sizes.setdefault(atom, actual) == actual
        if not fits:
            raise BackendError(f"reference: {node.op} has the shape {list(value.shape)}, its type is {kind}")

    # ------------------------------------------------------------------------------------- opaque nodes

    def opaque(self, node: Node, args: Sequence[Value]) -> Sequence[Value]:
        """All outputs of a node that has no expression."""
        form: Form = node.attribute("form")
        name = form.operator
        if form.bodies and name in ("If", "Loop"):
            try:
                found = self.branch(node, form, args) if name == "If" else self.loop(form, args)
                if found is not None:
                    return found
            except _TooLong:  # a runtime might not end either
                if self.field.name == "reals":
                    raise
                return self.unknown(node, form, args)
            except BackendError:
                pass  # then as a whole
        own = [a for a in args if a is not None]
        shaped = name in ("Shape", "Size") and all(isinstance(a, np.ndarray) for a in own)
        if self.field.name == "reals" or shaped or not any(map(self.holds_elements, own)):
            if shaped:
                args = [np.zeros(a.shape, np.float32) for a in own]
            return [lifted(v, self.field) for v in run_alone(node, args, self.frame)]
        return self.unknown(node, form, args)

    def holds_elements(self, value: Value) -> bool:
        if isinstance(value, list):
            return any(map(self.holds_elements, value))
        return isinstance(value, Token) or (isinstance(value, np.ndarray) and self.field.has_elements(value))

    def body(self, program: Program, inputs: Sequence[Value], captured: Sequence[Value]) -> list[Value]:
        inner = _Run(self.field, self.frame, outer=self)
        held = dict(zip(program.inputs, inputs, strict=True)) | dict(
            zip(program.captured, captured, strict=True)
        )
        return inner.values([node for _, node in program.outputs], held)

    def branch(self, node: Node, form: Form, args: Sequence[Value]) -> Sequence[Value] | None:
        condition = args[0]
        if not isinstance(condition, np.ndarray) or condition.dtype.kind != "b":
            return None
        holds = bool(condition.item())
        self.taken.add((node, holds))
        chosen = dict(form.bodies)["then_branch" if holds else "else_branch"]
        return self.body(chosen, (), args[form.inputs :])

    def loop(self, form: Form, args: Sequence[Value]) -> Sequence[Value] | None:
        """None where what decides the number of rounds is not known."""
        ((_, body),) = form.bodies
        if self.outer is None:
            self.turned[0] = 0
        own, captured = [*args[: form.inputs], None, None], args[form.inputs :]
        limit, going, *state = own[: max(form.inputs, 2)]
        count, place = len(state), 0
        rounds: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - count)]
        flag = np.asarray(True) if going is None else going
        while True:
            if not isinstance(flag, np.ndarray) or flag.dtype.kind != "b" or isinstance(limit, Token):
                return None
            if not flag.item() or (limit is not None and place >= int(limit.item())):
                break
            self.turned[0] += len(body.nodes)
            if self.turned[0] > self.most:
                raise _TooLong(f"reference: loops of more than {self.most} nodes, one round after another")
            flag, *found = self.body(body, [np.asarray(place), flag, *state], captured)
            state = found[:count]
            for part, value in zip(rounds, found[count:], strict=True):
                part.append(value)
            place += 1
        if rounds and not place:
            return None
        return [*state, *(np.stack(part) for part in rounds)]

    def unknown(self, node: Node, form: Form, args: Sequence[Value]) -> list[Value]:
        """Outputs that are random, and the same for equal forms and equal arguments."""
        # an effect differs from every other: its label stands in for its form
        known = self.forms.setdefault(self.labels.get(node, form), len(self.forms))
        digest = hashlib.blake2b(f"{known} {getattr(self.field, 'seed', 0)}".encode(), digest_size=16)
        for arg in args:
            digest.update(_fingerprint(arg))
        rng = np.random.default_rng(int.from_bytes(digest.digest()))
        made: list[Value] = []
        for place, kind in enumerate(node.types):
            token = Token(hashlib.blake2b(digest.digest() + bytes([place % 256]), digest_size=16).digest())
            if not isinstance(kind, TensorType) or kind.dtype == "string":
                made.append(token)
                continue
            floats = kind.dtype.startswith(("float", "bfloat"))
            open_sizes = {a for n in kind.shape for a in atoms(n) if isinstance(a, Symbol)} - {*self.sizes}
            if open_sizes and not floats:  # few integers of its type could tell it from another
                made.append(token)
                continue

            def size_of(symbol: Any) -> int:
                assert isinstance(symbol, Symbol)
                return self.sizes.setdefault(symbol, ANY)

            shape = [int(value_of(n, size_of)) for n in kind.shape]
            if floats:
                made.append(self.field.random(shape, rng))
            else:
                drawn = rng.integers(0, 2, shape)
                made.append(drawn.astype(bool) if kind.dtype == "bool" else drawn)
        return made


def lifted(value: Value, field: Field) -> Value:
    """Data of any dtype in the field."""
    if isinstance(value, list):
        return [lifted(v, field) for v in value]
    if value is None or isinstance(value, Token):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "OSUc":
        return array
    if array.dtype.kind == "V" and "int" in array.dtype.name:
        return array.astype(np.int64)
    return np.asarray(field.lift(array))  # arithmetic on arrays of rank 0 leaves numbers


def _owner(node: Node) -> Node:
    """The node whose output an item is; any other node itself."""
    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    return owner


def _needs(node: Node) -> list[Node]:
    """The nodes whose values are needed: an output of a declared operator is computed by itself."""
    owner = _owner(node)
    return [a for a in (arguments(owner) if owner.declared else node.args) if a is not None]


def _order(roots: Sequence[Node], held: Mapping[Node, Value]) -> Iterator[Node]:
    """What must be computed for the roots beyond what is held, arguments first."""
    seen = set(held)
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(_needs(node)))


def _fingerprint(value: Value) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    if isinstance(value, Token):
        found.update(b"token" + value.digest)
    elif isinstance(value, list):
        found.update(f"list{len(value)}".encode() + b"".join(map(_fingerprint, value)))
    elif value is None:
        found.update(b"none")
    else:
        found.update(f"{value.dtype.kind}{value.shape}".encode())
        text = value.dtype.kind in "OSU"
        found.update(repr(value.tolist()).encode() if text else np.ascontiguousarray(value).tobytes())
    return found.digest()
