"""Evaluates programs node by node, by the expressions of their operators, in float64 or any other field.

Opaque nodes have no expression.  Over the reals they run on onnx's reference evaluator in float64, or on
onnxruntime in the node's own types; in other fields they are unknown functions of all their arguments.
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
from tensaurus.expr.sizes.size import Symbol, atoms, single_atom
from tensaurus.expr.sizes.size import evaluate as value_of
from tensaurus.graph.analysis.conversion_chains import args_before_casts
from tensaurus.graph.analysis.evaluate_node import output_expression
from tensaurus.graph.ir.node import CONSTANT, ITEM, Node, Type
from tensaurus.graph.ir.opaque import OpaqueForm
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import TensorType
from tensaurus.runtimes.backends import Array, BackendError
from tensaurus.runtimes.backends.reference.alone import run_alone
from tensaurus.runtimes.backends.reference.kept_constants import KeptConstants

# How many nodes of bodies one loop may evaluate, those of inner loops included.  Over the reals the limit is
# higher: evaluation has a process with a time limit of its own, and nothing else can give the answer.
MAX_LOOP_NODES, MAX_LOOP_NODES_OVER_REALS = 50_000, 1_000_000

UNKNOWN_SIZE = 4  # of a dimension of an unknown function's result, where nothing else determines the size

# An array of elements of the field, of int64 or of bools; text and complex numbers unchanged; a list for a
# sequence; None for an optional without a value.
Value: TypeAlias = Any


@dataclass(frozen=True)
class Token:
    """A value that the field cannot represent, known only to be equal to itself."""

    digest: bytes


def evaluate(
    program: Program,
    feeds: Mapping[str, Array],
    field: Field,
    *,
    cache: MutableMapping[Node, Value] | None = None,
    taken: set[tuple[Node, bool]] | None = None,
    rounded: bool = False,
    constants: KeptConstants | None = None,
) -> dict[str, Value]:
    """Return every output by name, in the field.  `feeds` are arrays of elements, ints or bools.

    Values are freed after their last use.  With a `cache`, values in it are not computed again and all
    computed values are kept in it: as nodes are interned, a second program shares them.  With `constants`,
    only what inputs do not change is kept.  Each If that is evaluated is added to `taken`, with its
    condition.  With `rounded`, floats are rounded to the type of each node.  Raises BackendError for a node
    that cannot be evaluated.
    """
    return evaluate_all(
        [program], feeds, field, cache=cache, taken=taken, rounded=rounded, constants=constants
    )[0]


class _LoopTooLong(BackendError):
    """A loop evaluates more nodes than the limit."""


def evaluate_all(
    programs: Sequence[Program],
    feeds: Mapping[str, Array],
    field: Field,
    *,
    cache: MutableMapping[Node, Value] | None = None,
    taken: set[tuple[Node, bool]] | None = None,
    rounded: bool = False,
    sizes: Mapping[Symbol, int] = MappingProxyType({}),
    constants: KeptConstants | None = None,
) -> list[dict[str, Value]]:
    """Evaluate several programs at once, see `evaluate`: shared nodes are computed once and freed early.

    `sizes` are numbers for symbols that are no dimension of an input: N for an input of shape [min(N, 5)].
    """
    held: dict[Node, Value] = {}
    evaluation = _Evaluation(field, next((p.frame for p in programs if p.frame is not None), None), programs)
    evaluation.taken, evaluation.rounded = set() if taken is None else taken, rounded
    evaluation.constants = constants
    evaluation.sizes.update(sizes)
    for program in programs:
        for node in program.inputs:
            name = node.attribute("name")
            if name not in feeds:
                raise BackendError(f"reference: input {name!r} is missing")
            held[node] = feeds[name]
    roots = [node for program in programs for _, node in program.outputs]
    values = iter(evaluation.evaluate_roots(roots, held, cache))
    return [{name: next(values) for name, _ in program.outputs} for program in programs]


class _Evaluation:
    """The state of one evaluation: field, known sizes, and identities of unknown functions."""

    def __init__(
        self, field: Field, frame: Any, programs: Sequence[Program] = (), outer: _Evaluation | None = None
    ):
        self.field = field
        self.frame = frame
        # a body reads the sizes around it; its own symbols get new numbers in every round of a loop
        self.sizes: dict[Any, int] = {} if outer is None else dict(outer.sizes)
        self.outer = outer
        # how many nodes of bodies were evaluated; inner loops share the count
        self.loop_nodes: list[int] = [0] if outer is None else outer.loop_nodes
        self.max_loop_nodes = MAX_LOOP_NODES_OVER_REALS if field.name == "reals" else MAX_LOOP_NODES
        # the number of each unknown function, by its opaque form or by its label
        self.forms: dict[Any, int] = {} if outer is None else outer.forms
        # labels of nodes with an effect (such as random numbers): two of them equal each other only by label
        self.labels: dict[Node, Any] = {} if outer is None else outer.labels
        self.taken: set[tuple[Node, bool]] = set() if outer is None else outer.taken
        self.rounded: bool = outer is not None and outer.rounded
        self.constants: KeptConstants | None = None  # of the program itself, not of its bodies
        for program in programs:
            others = {n for other in programs if other is not program for n in other.nodes}
            effects = [n for n in program.nodes if any(key == "identity" for key, _ in n.attrs)]
            # a node that several programs have keeps its number; of the others, the k-th is the same in all
            # programs, as a model that is imported twice gives its nodes new numbers
            own = (n for n in effects if n not in others)
            self.labels.update((n, ("own", k)) for k, n in enumerate(own))
            self.labels.update((n, n.attribute("identity")) for n in effects if n in others)

    def evaluate_roots(
        self, roots: Sequence[Node], held: dict[Node, Value], cache: MutableMapping[Node, Value] | None = None
    ) -> list[Value]:
        """Return the roots' values; `held` has the values of inputs, and values are freed from it."""
        for node, value in held.items():
            self.check_type(node.types[0], value, node)
        if cache is not None:
            held.update(cache)
        if self.constants is not None:
            held.update(self.constants.values)
        order = list(_order(roots, held))
        # constants that something else reads; not those that are only steps on the way to them
        readers = [node for node in order if not node.static] if self.constants is not None else []
        kept = {arg for node in readers for arg in _needed_args(node) if arg.static}
        # how often each value is still to be read; a root is read once more, for the result
        reads_left = Counter(arg for node in order for arg in _needed_args(node))
        reads_left.update(roots)
        for node in order:
            held[node] = value = self.evaluate_node(node, held)
            if cache is not None:
                cache[node] = value
            if self.constants is not None and node in kept:
                self.constants.keep(node, value)
            for arg in set(_needed_args(node)):
                reads_left[arg] -= _needed_args(node).count(arg)
                if not reads_left[arg]:
                    del held[arg]
        return [held[root] for root in roots]

    def evaluate_node(self, node: Node, held: Mapping[Node, Value]) -> Value:
        """Return a node's value, the list of all outputs for a call of several; `held` has its arguments'."""
        if node.op is CONSTANT:
            return lift_value(node.attribute("data").array, self.field)
        if node.op is ITEM and not _call_of(node).is_declared:
            found = held[_call_of(node)][node.attribute("index")]
            self.check_type(node.types[0], found, node)
            return found
        if node.is_declared or node.op is ITEM:
            try:
                return self.evaluate_declared(node, held)
            except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise BackendError(f"reference: {_call_of(node).op}: {error}") from error
        found = self.evaluate_opaque(node, [None if a is None else held[a] for a in node.args])
        if len(node.types) > 1:
            return found
        self.check_type(node.types[0], found[0], node)
        return found[0]

    def evaluate_declared(self, node: Node, held: Mapping[Node, Value]) -> Value:
        """Evaluate one output of an operator by its expression."""
        owner, index = _call_of(node), node.attribute("index") if _call_of(node) is not node else 0
        scope, read = output_expression(owner, index)
        leaves: dict[Any, Array] = {}
        for leaf, arg in read.items():
            value = held[arg]
            if not isinstance(value, np.ndarray):
                raise ValueError("a value that the field cannot hold")
            leaves[leaf] = value
        return self.conform_to_type(interpret(scope, leaves, self.field, self.sizes), owner.types[index])

    def conform_to_type(self, value: Array, kind: Type) -> Array:
        """Return the value as its type has it: floats as field elements, integers wrapped to their width."""
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

    def check_type(self, kind: Type, value: Value, node: Node) -> None:
        """Check that a value has its type's shape, and learn symbolic sizes from it.  Raises BackendError."""
        if not isinstance(kind, TensorType) or not isinstance(value, np.ndarray):
            return
        fits = value.ndim == kind.rank
        for size, actual in zip(kind.shape, value.shape, strict=False):
            if isinstance(size, int):
                fits &= size == actual
                continue
            atom = single_atom(size)
            if isinstance(atom, Symbol):
                fits &= self.sizes.setdefault(atom, actual) == actual
        if not fits:
            raise BackendError(f"reference: {node.op} has the shape {list(value.shape)}, its type is {kind}")

    # ------------------------------------------------------------------------------------- opaque nodes

    def evaluate_opaque(self, node: Node, args: Sequence[Value]) -> Sequence[Value]:
        """Return all outputs of a node without an expression."""
        form: OpaqueForm = node.attribute("form")
        name = form.operator
        if form.bodies and name in ("If", "Loop"):
            try:
                is_if = name == "If"
                found = self.evaluate_branch(node, form, args) if is_if else self.evaluate_loop(form, args)
                if found is not None:
                    return found
            except _LoopTooLong:  # the loop might not end on a runtime either
                if self.field.name == "reals":
                    raise
                return self.draw_unknown(node, form, args)
            except BackendError:
                pass  # evaluate the node as a whole instead
        given = [a for a in args if a is not None]
        # run the node alone over the reals, and in other fields where no element of the field matters
        asks_shape = name in ("Shape", "Size") and all(isinstance(a, np.ndarray) for a in given)
        if self.field.name == "reals" or asks_shape or not any(map(self.holds_elements, given)):
            if asks_shape:  # zeros stand for elements of any field
                args = [np.zeros(a.shape, np.float32) for a in given]
            return [lift_value(v, self.field) for v in run_alone(node, args, self.frame)]
        return self.draw_unknown(node, form, args)

    def holds_elements(self, value: Value) -> bool:
        """Return whether a value depends on elements of the field, which onnx's evaluator cannot take."""
        if isinstance(value, list):
            return any(map(self.holds_elements, value))
        return isinstance(value, Token) or (isinstance(value, np.ndarray) and self.field.has_elements(value))

    def evaluate_body(
        self, program: Program, inputs: Sequence[Value], captured: Sequence[Value]
    ) -> list[Value]:
        """Return the outputs of a body for these inputs and captured values."""
        inner = _Evaluation(self.field, self.frame, outer=self)
        held = dict(zip(program.inputs, inputs, strict=True)) | dict(
            zip(program.captured, captured, strict=True)
        )
        return inner.evaluate_roots([node for _, node in program.outputs], held)

    def evaluate_branch(self, node: Node, form: OpaqueForm, args: Sequence[Value]) -> Sequence[Value] | None:
        """Evaluate the branch of an If that its condition chooses; None where the condition is unknown."""
        condition = args[0]
        if not isinstance(condition, np.ndarray) or condition.dtype.kind != "b":
            return None
        holds = bool(condition.item())
        self.taken.add((node, holds))
        chosen = dict(form.bodies)["then_branch" if holds else "else_branch"]
        return self.evaluate_body(chosen, (), args[form.inputs :])

    def evaluate_loop(self, form: OpaqueForm, args: Sequence[Value]) -> Sequence[Value] | None:
        """Evaluate a loop round by round; None where the number of rounds depends on an unknown value."""
        ((_, body),) = form.bodies
        if self.outer is None:
            self.loop_nodes[0] = 0
        # ONNX: inputs are limit and condition, both optional, and the state; the body's outputs are the
        # condition, the state, and what is stacked over all rounds
        own, captured = [*args[: form.inputs], None, None], args[form.inputs :]
        limit, condition, *state = own[: max(form.inputs, 2)]
        count, iteration = len(state), 0
        stacked: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - count)]
        going_on = np.asarray(True) if condition is None else condition
        while True:
            if not isinstance(going_on, np.ndarray) or going_on.dtype.kind != "b" or isinstance(limit, Token):
                return None
            if not going_on.item() or (limit is not None and iteration >= int(limit.item())):
                break
            self.loop_nodes[0] += len(body.nodes)
            if self.loop_nodes[0] > self.max_loop_nodes:
                raise _LoopTooLong(
                    f"reference: loops of more than {self.max_loop_nodes} nodes, one round after another"
                )
            going_on, *found = self.evaluate_body(body, [np.asarray(iteration), going_on, *state], captured)
            state = found[:count]
            for part, value in zip(stacked, found[count:], strict=True):
                part.append(value)
            iteration += 1
        if stacked and not iteration:  # nothing tells the shapes of empty stacks
            return None
        return [*state, *(np.stack(part) for part in stacked)]

    def draw_unknown(self, node: Node, form: OpaqueForm, args: Sequence[Value]) -> list[Value]:
        """Return random outputs, which are the same for equal forms and equal arguments."""
        # a node with an effect equals no other: its label takes the place of its form
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
            if open_sizes and not floats:  # integers of few elements would often be equal by chance
                made.append(token)
                continue

            def size_of(symbol: Any) -> int:
                assert isinstance(symbol, Symbol)
                return self.sizes.setdefault(symbol, UNKNOWN_SIZE)

            shape = [int(value_of(n, size_of)) for n in kind.shape]
            if floats:
                made.append(self.field.random(shape, rng))
            else:
                drawn = rng.integers(0, 2, shape)
                made.append(drawn.astype(bool) if kind.dtype == "bool" else drawn)
        return made


def lift_value(value: Value, field: Field) -> Value:
    """Return data of any dtype as values in the field."""
    if isinstance(value, list):
        return [lift_value(v, field) for v in value]
    if value is None or isinstance(value, Token):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "OSUc":
        return array
    if array.dtype.kind == "V" and "int" in array.dtype.name:
        return array.astype(np.int64)
    return np.asarray(field.lift(array))  # arithmetic on arrays of rank 0 leaves numbers


def _call_of(node: Node) -> Node:
    """Return the call of which an item is an output; any other node itself."""
    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    return owner


def _needed_args(node: Node) -> list[Node]:
    """Return the nodes whose values a node needs; outputs of a declared call are computed one by one."""
    owner = _call_of(node)
    return [a for a in (args_before_casts(owner) if owner.is_declared else node.args) if a is not None]


def _order(roots: Sequence[Node], held: Mapping[Node, Value]) -> Iterator[Node]:
    """Yield the nodes to compute for the roots, without those that are held, arguments first."""
    seen = set(held)
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(_needed_args(node)))


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
