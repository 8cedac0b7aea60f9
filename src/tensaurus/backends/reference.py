"""The reference: programs evaluated node by node by the algebra's own evaluator, in float64 or any field.

Opaque nodes have no expression.  Over the reals they run on onnx's reference evaluator in float64, or on
onnxruntime in the node's own types; elsewhere they are unknown functions of all their arguments.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from tensaurus.backends import Array, BackendError

if TYPE_CHECKING:
    from tensaurus.algebra.field import Field
    from tensaurus.graph.node import Node, Type
    from tensaurus.graph.opaque import Form
    from tensaurus.graph.program import Program

__all__ = ["BACKEND", "Session", "Token", "evaluate", "evaluate_all"]

# Elements of an array; ints as int64 and bools; text and complex numbers as they are; lists are sequences,
# None an optional without a value.
Value: TypeAlias = Any

LARGE = 1 << 20  # elements beyond which onnx's evaluator, written in Python, may take minutes


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
) -> dict[str, Value]:
    """Every output by name, in the field.  `feeds` are arrays of elements, ints or bools.

    Values are freed when their last use is past.  With a `cache`, nodes in it are not computed again and
    every value computed is kept there: nodes are interned, so a second program shares what it has in common.
    Raises BackendError for a node that cannot be evaluated.
    """
    return evaluate_all([program], feeds, field, cache=cache)[0]


def evaluate_all(
    programs: Sequence[Program],
    feeds: Mapping[str, Array],
    field: Field,
    *,
    cache: MutableMapping[Node, Value] | None = None,
) -> list[dict[str, Value]]:
    """`evaluate` for several programs at once: what they share is computed once and freed early."""
    from tensaurus.graph.node import INPUT

    held: dict[Node, Value] = {}
    run = _Run(field, next((p.frame for p in programs if p.frame is not None), None), programs)
    for program in programs:
        for node in program.inputs:
            name = node.attribute("name")
            if name not in feeds:
                raise BackendError(f"reference: input {name!r} is missing")
            assert node.op is INPUT
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
        self.sizes: dict[Any, int] = {}
        self.forms: dict[Any, int] = {} if outer is None else outer.forms
        self.labels: dict[Node, Any] = {} if outer is None else outer.labels
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
        from tensaurus.graph.node import CONSTANT, ITEM

        if node.op is CONSTANT:
            return self.lifted(node.attribute("data").array)
        if node.op is ITEM and not _owner(node).declared:
            found = held[_owner(node)][node.attribute("index")]
            self.check(node.types[0], found, node)
            return found
        if node.declared or node.op is ITEM:
            try:
                return self.declared(node, held)
            except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
                raise BackendError(f"reference: {_owner(node).op}: {error}") from error
        found = self.opaque(node, [None if a is None else held[a] for a in node.args])
        if len(node.types) > 1:
            return found
        self.check(node.types[0], found[0], node)
        return found[0]

    def declared(self, node: Node, held: Mapping[Node, Value]) -> Value:
        """One output of an operator, by its expression."""
        from tensaurus.algebra.expr import tensors
        from tensaurus.algebra.interpret import interpret
        from tensaurus.ops import Op

        owner, index = _owner(node), node.attribute("index") if _owner(node) is not node else 0
        op = owner.op
        assert isinstance(op, Op)
        kinds = tuple(None if a is None else a.tensor for a in owner.args)
        scope = op.scopes(kinds, owner.attrs)[index]
        needed = set(tensors(scope))
        leaves: dict[Any, Array] = {}
        for leaf, arg in zip(op.tensors(kinds), owner.args, strict=False):
            if leaf is not None and arg is not None and leaf in needed:
                value = held[arg]
                if not isinstance(value, np.ndarray):
                    raise ValueError("a value that the field cannot hold")
                leaves[leaf] = value
        return self.conformed(interpret(scope, leaves, self.field, self.sizes), owner.types[index])

    def conformed(self, value: Array, kind: Type) -> Array:
        """The value in the form of its type: elements for floats, integers wrapped to their width."""
        from tensaurus.ops import TensorType

        assert isinstance(kind, TensorType)
        if kind.dtype.startswith(("float", "bfloat")):
            return value if self.field.elements(value) else self.field.call("to_float32", [value])
        if self.field.elements(value) or value.dtype.kind not in "iub":
            return value
        if kind.dtype == "bool":
            return value.astype(bool, copy=False)
        return _wrapped(value, kind.dtype)

    def lifted(self, value: Value) -> Value:
        """Data of any dtype in the field."""
        if isinstance(value, list):
            return [self.lifted(v) for v in value]
        if value is None or isinstance(value, Token):
            return value
        array = np.asarray(value)
        if array.dtype.kind in "OSUc":
            return array
        if array.dtype.kind == "V" and "int" in array.dtype.name:
            return array.astype(np.int64)
        return self.field.lift(array)

    def check(self, kind: Type, value: Value, node: Node) -> None:
        """The value has its type's shape; sizes that are symbols become known from it."""
        from tensaurus.algebra.size import Symbol, terms_of
        from tensaurus.ops import TensorType

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
            with suppress(BackendError):  # then as a whole
                found = self.branch(form, args) if name == "If" else self.loop(form, args)
                if found is not None:
                    return found
        own = [a for a in args if a is not None]
        if self.field.name == "reals" or name in ("Shape", "Size") or not any(map(self.holds_elements, own)):
            if name in ("Shape", "Size"):
                args = [np.zeros(a.shape, np.float32) for a in args]
            return [self.lifted(v) for v in _run_alone(node, args, self.frame)]
        return self.unknown(node, form, args)

    def holds_elements(self, value: Value) -> bool:
        if isinstance(value, list):
            return any(map(self.holds_elements, value))
        return isinstance(value, Token) or (isinstance(value, np.ndarray) and self.field.elements(value))

    def body(self, program: Program, inputs: Sequence[Value], captured: Sequence[Value]) -> list[Value]:
        inner = _Run(self.field, self.frame, outer=self)
        held = dict(zip(program.inputs, inputs, strict=True)) | dict(
            zip(program.captured, captured, strict=True)
        )
        return inner.values([node for _, node in program.outputs], held)

    def branch(self, form: Form, args: Sequence[Value]) -> Sequence[Value] | None:
        condition = args[0]
        if not isinstance(condition, np.ndarray) or condition.dtype.kind != "b":
            return None
        chosen = dict(form.bodies)["then_branch" if condition.item() else "else_branch"]
        return self.body(chosen, (), args[form.inputs :])

    def loop(self, form: Form, args: Sequence[Value]) -> Sequence[Value] | None:
        """None where what decides the number of rounds is not known."""
        ((_, body),) = form.bodies
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
        from tensaurus.algebra.size import Symbol, evaluate
        from tensaurus.ops import TensorType

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

            def size_of(symbol: Any) -> int:
                assert isinstance(symbol, Symbol)
                return self.sizes[symbol]

            try:
                shape = [int(evaluate(n, size_of)) for n in kind.shape]
            except KeyError:
                made.append(token)
                continue
            if kind.dtype.startswith(("float", "bfloat")):
                made.append(self.field.random(shape, rng))
            else:
                drawn = rng.integers(0, 2, shape)
                made.append(drawn.astype(bool) if kind.dtype == "bool" else drawn)
        return made


def _owner(node: Node) -> Node:
    """The node whose output an item is; any other node itself."""
    from tensaurus.graph.node import ITEM

    owner = node.args[0] if node.op is ITEM else node
    assert owner is not None
    return owner


def _needs(node: Node) -> list[Node]:
    """The nodes whose values are needed: an output of a declared operator is computed by itself."""
    owner = _owner(node)
    return [a for a in (owner if owner.declared else node).args if a is not None]


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


def _wrapped(value: Array, dtype: str) -> Array:
    """int64 wrapped to a narrower integer type."""
    if dtype in ("int64", "uint64"):
        return value.astype(np.int64, copy=False)
    if dtype in ("int4", "uint4", "int2", "uint2"):
        bits = int(dtype[-1])
        low = 0 if dtype[0] == "u" else -(1 << bits - 1)
        return np.asarray((value.astype(np.int64) - low) % (1 << bits) + low)
    return np.asarray(value.astype(dtype).astype(np.int64))


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


# ------------------------------------------------------------------------- one opaque node over the reals

_compiled: WeakKeyDictionary[Node, dict[bool, Any]] = WeakKeyDictionary()


def _run_alone(node: Node, args: Sequence[Value], frame: Any) -> list[Value]:
    """The node's outputs, in float64 where an evaluator does it; BackendError where none runs it.

    onnx's evaluator has errors of its own: it must agree roughly with the runtime, which else decides.
    """
    if frame is None:
        raise BackendError(f"reference: {node.attribute('form').operator}: no opset is known")
    sessions = _compiled.setdefault(node, {})
    form: Form = node.attribute("form")
    own = _narrow(node, args)
    told: Value = None
    reason: Exception | None = None
    try:
        told = _on_runtime(node, own, frame, sessions)
    except Exception as error:  # whatever the runtime refuses
        reason = error
    size = sum(a.size for a in (*args, *(told or ())) if isinstance(a, np.ndarray))
    if told is None or size <= LARGE:
        try:
            wide = _on_evaluator(node, args, frame, sessions)
            if told is None or all(map(_alike, wide, told)):
                return _placed(form, wide)
        except Exception as error:  # whatever the evaluator lacks
            reason = reason or error
    if told is None:
        raise BackendError(f"reference: {form.operator}: {reason}") from reason
    return _placed(form, told)


def _placed(form: Form, outputs: Sequence[Value]) -> list[Value]:
    """One value for every output of the node, None for those that it leaves out."""
    places = iter(outputs)
    return [next(places) if wanted else None for wanted in form.outputs]


def _narrow(node: Node, args: Sequence[Value]) -> list[Value]:
    """Arguments in the node's own types."""
    from tensaurus.graph.data import numpy_dtype
    from tensaurus.ops import TensorType

    result = []
    for arg, value in zip(node.args, args, strict=True):
        kind = None if arg is None else arg.types[0]
        if isinstance(kind, TensorType) and isinstance(value, np.ndarray) and kind.dtype != "string":
            with np.errstate(all="ignore"):
                value = value.astype(numpy_dtype(kind.dtype))
        result.append(value)
    return result


def _alone(node: Node, frame: Any) -> bytes:
    """A model of the node alone: inputs i0, i1, ..., outputs o0, o1, ..."""
    from onnx import TypeProto, ValueInfoProto

    from tensaurus.graph.node import OtherType, item, opaque, source
    from tensaurus.graph.onnx_export import export_model
    from tensaurus.graph.program import Program
    from tensaurus.ops import TensorType
    from tensaurus.ops.onnx_form import dtype_code

    form: Form = node.attribute("form")
    inputs = {k: source(f"i{k}", a.types[0]) for k, a in enumerate(node.args) if a is not None}
    made = opaque(form, [inputs.get(k) for k in range(len(node.args))], node.types)
    outputs = [(f"o{k}", item(made, k)) for k, wanted in enumerate(form.outputs) if wanted]

    def info(name: str, kind: Type) -> ValueInfoProto:
        value = ValueInfoProto(name=name)
        if isinstance(kind, TensorType):
            value.type.tensor_type.elem_type = dtype_code(kind.dtype)
        elif isinstance(kind, OtherType) and kind.proto:
            value.type.CopyFrom(TypeProto.FromString(kind.proto))
        return value

    around = replace(
        frame,
        inputs=tuple(info(f"i{k}", n.types[0]) for k, n in inputs.items()),
        outputs=tuple(info(name, n.types[0]) for name, n in outputs),
        defaults=(),
        fixed=False,
    )
    program = Program(tuple(inputs.values()), tuple(outputs), frame=around)
    return bytes(export_model(program, folded=False).SerializeToString())


def _on_runtime(node: Node, args: Sequence[Value], frame: Any, sessions: dict[bool, Any]) -> list[Value]:
    import onnxruntime as ort

    if False not in sessions:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        sessions[False] = ort.InferenceSession(_alone(node, frame), options, providers=providers)
    feeds = {f"i{k}": v for k, (a, v) in enumerate(zip(node.args, args, strict=True)) if a is not None}
    return list(sessions[False].run(None, feeds))


def _on_evaluator(node: Node, args: Sequence[Value], frame: Any, sessions: dict[bool, Any]) -> list[Value]:
    from onnx import ModelProto
    from onnx.reference import ReferenceEvaluator

    if True not in sessions:
        sessions[True] = ReferenceEvaluator(ModelProto.FromString(_alone(node, frame)))
    narrow = _narrow(node, args)
    feeds = {}
    for k, (wide, own) in enumerate(zip(args, narrow, strict=True)):
        if node.args[k] is not None:
            floats = isinstance(wide, np.ndarray) and wide.dtype.kind == "f"
            feeds[f"i{k}"] = wide if floats else own
    with np.errstate(all="ignore"):
        return list(sessions[True].run(None, feeds))


def _alike(wide: Value, own: Value) -> bool:
    """Whether two results are one up to rounding; of integers only the shape is compared, as ties differ."""
    if isinstance(own, list):
        return isinstance(wide, list) and len(wide) == len(own) and all(map(_alike, wide, own))
    if not isinstance(own, np.ndarray):
        return (wide is None) == (own is None)
    wide = np.asarray(wide)
    if wide.shape != own.shape or (wide.dtype.kind in "OSU") != (own.dtype.kind in "OSU"):
        return False
    if wide.dtype.kind != "f" or not own.size:
        return True
    told = own.astype(np.float64)
    finite = np.isfinite(told) & np.isfinite(wide)
    scale = float(np.max(np.abs(told), where=finite, initial=0.0))
    return bool(np.all(np.abs(wide - told)[finite] <= 1e-2 * scale))


# ------------------------------------------------------------------------------------------- the backend


@dataclass(frozen=True)
class Session:
    """An imported model in float64."""

    program: Program

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Value]:
        """Outputs as float64, or as ints and bools of the model's own types."""
        from onnx import numpy_helper

        from tensaurus.algebra.field import Reals

        names = [name for name, _ in self.program.outputs]
        wanted = names if output_names is None else list(output_names)
        if strange := [name for name in wanted if name not in names]:
            raise BackendError(f"reference: no output {strange[0]!r}; the model has {', '.join(names)}")
        inputs = {node.attribute("name"): node.types[0] for node in self.program.inputs}
        if strange := [name for name in feeds if name not in inputs]:
            raise BackendError(f"reference: no input {strange[0]!r}; the model has {', '.join(inputs)}")
        given = {t.name: numpy_helper.to_array(t) for t in self.program.frame.defaults} | dict(feeds)
        field = Reals()
        run = _Run(field, None)
        for name, value in given.items():
            _require_type(name, inputs[name], value)
        found = evaluate(self.program, {name: run.lifted(v) for name, v in given.items()}, field)
        types = {name: node.types[0] for name, node in self.program.outputs}
        return [_returned(found[name], types[name]) for name in wanted]


def _require_type(name: str, kind: Type, value: Value) -> None:
    from tensaurus.ops import TensorType

    if isinstance(kind, TensorType) and isinstance(value, np.ndarray):
        actual = "string" if value.dtype.kind in "OSU" else value.dtype.name
        if actual != kind.dtype:
            raise BackendError(f"reference: input {name!r} is {actual}, the model wants {kind.dtype}")


def _returned(value: Value, kind: Type) -> Value:
    from tensaurus.graph.data import numpy_dtype
    from tensaurus.ops import TensorType

    if isinstance(value, np.ndarray):
        if isinstance(kind, TensorType) and value.dtype.kind == "i":
            return value.astype(numpy_dtype(kind.dtype))
        return np.array(value)  # the caller owns it
    return value


@dataclass(frozen=True)
class _Reference:
    name: str = "reference"

    def version(self) -> str:
        return version("numpy")

    def installed(self) -> bool:
        return True

    def compile(self, model: bytes | Path, *, threads: int) -> Session:
        """A session in float64; `threads` is what numpy's BLAS has."""
        from onnx import ModelProto

        from tensaurus.errors import TensaurusError
        from tensaurus.graph.onnx_import import import_model, load_model

        try:
            if isinstance(model, bytes):
                proto = ModelProto()
                proto.ParseFromString(model)
            else:
                proto = load_model(model)
            return Session(import_model(proto))
        except (TensaurusError, ValueError, RuntimeError) as error:
            raise BackendError(f"reference: {error}") from error
        except Exception as error:  # protobuf's DecodeError
            raise BackendError(f"reference: not an ONNX model: {error}") from error


BACKEND = _Reference()
