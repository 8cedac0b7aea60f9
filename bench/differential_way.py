"""One small model: the programs that rules make of it, their files, and what the reference says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto
from sketches import Sketch
from sketches.elements import FLOATS, Array, Random, strange
from sketches.sketch import elements_of, is_large

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.ir.integer_types import wrap_to_dtype
from tensaurus.graph.analysis.evaluate_node import evaluate_node
from tensaurus.graph.ir.census import count_nodes
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.rules.language.match import Matcher, make_expander
from tensaurus.rules.language.rule import Rule, library
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference import evaluate, evaluate_all
from tensaurus.runtimes.backends.reference.evaluation import lift_value
from tensaurus.system.errors import TensaurusError

LEVELS = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
# kernels of the runtime that compute approximately: powers, and x * a + (b - mean * a) for (x - mean) * a + b
ROUGH = {"LRN": 2.0**-13, "InstanceNormalization": 2.0**-13}
MOST = 8  # programs that rules make of one model
ROOM = 100_000  # elements of a value at large sizes that a model is run at
FEEDS = 3  # other sizes that a model with names of sizes is run at
ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-23}
LARGEST = {"bfloat16": 1e37, "float16": 3e4, "float32": 1e37, "float64": 1e37}
SMALLEST = {"bfloat16": 1e-36, "float16": 6e-5, "float32": 1e-36, "float64": 1e-36}


@dataclass
class Variant:
    """What rules, one after the other, make of the model; none of them: it is only read and written again."""

    rules: tuple[str, ...]
    program: Program
    last: tuple[str, ...] = ()  # every rule that does the same as the last
    content: bytes = b""
    lacks: str = ""  # why this opset cannot say it


@dataclass
class Answer:
    """The reference's outputs at one assignment, with the least and the largest number on the way.

    They are the magnitudes of what is finite and not 0; `finite` says whether everything is.
    """

    outputs: dict[str, Array]
    program: Program
    feeds: dict[str, Array]
    smallest: float
    largest: float
    finite: bool

    def allowed(self, name: str, rounding: float) -> Array:
        """Return how far an output may be off: what roundings of everything on the way do to it, times eight.

        Each draw of roundings is tried with both signs, since a Relu or a Max hides one of them.
        """
        own = np.asarray(self.outputs[name])
        spread = np.zeros(own.shape)
        for trial in range(8):
            signed = rounding if trial % 2 else -rounding
            noisy = moved(self.program, self.feeds, np.random.default_rng(trial // 2), signed)[name]
            with np.errstate(all="ignore"):
                off = np.abs(noisy.astype(float) - own.astype(float))
            spread = np.maximum(spread, np.where(np.isfinite(off) | (noisy == own), off, np.inf))
        return 8 * np.nan_to_num(spread, nan=0.0, posinf=np.inf) + 16 * rounding * np.abs(own.astype(float))

    def stored(self, name: str) -> Array:
        """Return the output where every operator's result is rounded to its type, as a runtime stores it.

        What float32 makes of an unstable model is its meaning: 1 - 1e-11 becomes the 1 that OneHot compares
        with, and of x - round(x) few draws of roundings show what the largest can be.
        """
        return moved(self.program, self.feeds, np.random.default_rng(), 0.0, stored=True)[name]


@dataclass
class Case:
    """A model with everything that is compared."""

    sketch: Sketch
    model: bytes
    program: Program
    variants: list[Variant]
    feeds: list[dict[str, Array]]
    answers: list[Answer | None]
    strange: bool
    applied: Counter[str] = field(default_factory=Counter)

    @property
    def rounding(self) -> float:
        rough = [ROUGH[name] for name in opcodes(self.program) & set(ROUGH)]
        return max([*(ROUNDING.get(d, 0) for d in self._dtypes()), *rough])

    def holds(self, answer: Answer) -> bool:
        """Whether the runtime's types hold every number on the way, but for strange inputs' infinities."""
        dtypes = self._dtypes() & set(LARGEST)
        low, high = max(SMALLEST[d] for d in dtypes), min(LARGEST[d] for d in dtypes)
        return (answer.finite or self.strange) and low <= answer.smallest and answer.largest <= high

    @property
    def large(self) -> bool:
        """Whether it has a size beyond 400."""
        constants = (node.tensor.shape for node in self.program.nodes if node.op is CONSTANT)
        return any(map(_is_large, self.feeds)) or any(map(is_large, constants))

    def _dtypes(self) -> set[str]:
        kinds = [k for n in self.program.nodes for k in n.types if isinstance(k, TensorType)]
        return {k.dtype for k in kinds} | {"float32"}


class Undefined(Exception):
    """No specification gives the model a value, or we do not know one."""


@cache
def matchers() -> tuple[Matcher, ...]:
    return tuple(Matcher(rule) for rule in library() if "off" not in rule.tags)


@cache
def by_head() -> dict[Any, list[Matcher]]:
    found: dict[Any, list[Matcher]] = {}
    for matcher in matchers():
        if len(matcher.root_operators) == 1:
            found.setdefault(matcher.root_operators[0], []).append(matcher)
    return found


@cache
def expand() -> Any:
    return make_expander(library())


def case(sketch: Sketch, rng: Random) -> Case:
    """The sketch with its variants and the reference's answers.  Raises Undefined."""
    if sketch.built is None:
        sketch.close()
        if rng.random() < sketch.named:
            sketch.name_sizes()
        model = sketch.model()
        program = import_model(model)
    else:
        program = sketch.built
        try:
            model = export_model(program, expand=expand())
        except TensaurusError as error:
            raise Undefined(str(error)) from error
    odd = sketch.built is None and rng.random() < 0.05
    feeds = list(sketch.assignments(FEEDS))
    if odd:
        nan = rng.random() < 0.5
        feeds = [{n: strange(sketch.types[n], rng, nan) for n in feeds[0]}]
    feeds = [feeds[0], *(feed for feed in feeds[1:] if not _is_large(feed) or fits(model, feed))]
    answers: list[Answer | None] = []
    for place, feed in enumerate(feeds):
        if any(v.dtype.kind == "f" and np.isnan(v).any() for v in feed.values()):
            answers.append(None)  # what order NaN has, nobody says: only the runtime itself is asked
            continue
        try:
            answers.append(answer(model, program, feed))
        except Undefined:
            if not place:
                raise
            answers.append(None)
    variants = [Variant((), program)] if sketch.built is None else []
    found = Case(sketch, model.SerializeToString(), program, variants, feeds, answers, odd)
    if not odd:
        made = list(rewritten(program, sketch.origin, rng))
        variants += made
        if made and rng.random() < 0.25:  # one more step, from one of them
            first = made[int(rng.integers(len(made)))]
            variants += [
                Variant((*first.rules, *v.rules), v.program, v.last)
                for v in islice(rewritten(first.program, "", rng), 2)
            ]
    for variant in variants:
        found.applied.update(variant.last)
        try:
            variant.content = export_model(variant.program, expand=expand()).SerializeToString()
        except TensaurusError as error:
            variant.lacks = str(error)
    return found


def _is_large(feed: Mapping[str, Array]) -> bool:
    return any(is_large(value.shape) for value in feed.values())


def fits(model: ModelProto, feed: Mapping[str, Array]) -> bool:
    """Whether every value of the model is known to be small enough at these sizes."""
    try:
        program = import_model(model, {name: value.shape for name, value in feed.items()})
        kinds = [kind for node in program.nodes for kind in node.types if isinstance(kind, TensorType)]
        return max(map(elements_of, kinds), default=0) <= ROOM
    except (TensaurusError, TypeError):  # or a size that only a run tells
        return False


def rewritten(program: Program, wanted: str, rng: Random) -> Iterator[Variant]:
    """Programs in which one rule was applied at one place: those of the `wanted` rule first."""
    made: dict[Program, list[str]] = {}  # what several rules make is compared once
    for rule, changes in _changes(program):
        try:
            found = program.replace_nodes(changes)
        except Untypable:
            continue
        if found.outputs != program.outputs:
            made.setdefault(found, []).append(rule.name)
    order = list(made.items())
    rng.shuffle(order)  # type: ignore[arg-type]
    order.sort(key=lambda pair: wanted not in pair[1])
    for found, names in order[:MOST]:
        name = wanted if wanted in names else names[0]
        yield Variant((name,), found, tuple(dict.fromkeys(names)))


def _changes(program: Program) -> Iterator[tuple[Rule, dict[Node, Node]]]:
    for node in program.nodes:
        head = node.op
        if head is ITEM:
            assert node.args[0] is not None
            head = node.args[0].op
        if len(node.types) > 1:
            continue
        for matcher in by_head().get(head, ()):
            for binding in matcher.match_roots((node,)):
                applied = matcher.apply((node,), binding)
                if applied is not None:
                    yield matcher.rule, {node: applied[0]}
    for matcher in matchers():
        if len(matcher.root_operators) > 1:
            for changes in islice(matcher.joint_rewrites(program), 3):
                yield matcher.rule, changes


# -------------------------------------------------------------------------------------- the reference


def answer(model: ModelProto, program: Program, feeds: dict[str, Array]) -> Answer:
    """The reference's outputs, of the model at these very sizes.  Raises Undefined."""
    if any(not isinstance(n, int) for node in program.inputs for n in node.tensor.shape):
        try:
            program = import_model(model, {name: value.shape for name, value in feeds.items()})
        except TensaurusError as error:
            raise Undefined(str(error)) from error
    if opaque := count_nodes(program).reasons:
        raise Undefined("opaque: " + "; ".join(f"{name} ({why})" for name, why in opaque))
    cache: dict[Node, Array] = {}
    outputs = _evaluated(program, feeds, Reals(strict=True), cache)
    if node := next(_hiding_nan(program, cache), None):
        raise Undefined(f"{node.op} of NaN")
    floats = [
        np.abs(v) for v in cache.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.size
    ]
    largest = max([float(np.max(v, where=np.isfinite(v), initial=0.0)) for v in floats], default=0.0)
    smallest = min([float(np.min(v, where=v > 0, initial=np.inf)) for v in floats], default=np.inf)
    finite = all(np.isfinite(v).all() for v in floats)
    return Answer(outputs, program, feeds, smallest, largest, finite)


def _hiding_nan(program: Program, values: Mapping[Node, Array]) -> Iterator[Node]:
    """Nodes that read NaN and make numbers of it: nobody says how NaN is ordered, or what integer it is."""

    def has_nan(node: Node | None) -> bool:
        value = values.get(node) if node is not None else None
        return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())

    for node in program.nodes:
        if isinstance(node.op, Op) and any(map(has_nan, node.args)) and not has_nan(node):
            yield node


def _evaluated(
    program: Program, feeds: Mapping[str, Array], field: Reals, cache: dict[Node, Array] | None = None
) -> dict[str, Array]:
    given = {name: lift_value(value, field) for name, value in feeds.items()}
    try:
        with np.errstate(all="ignore"):
            return evaluate(program, given, field, cache=cache)
    except BackendError as error:
        raise Undefined(str(error)) from error
    except MemoryError as error:
        raise Undefined("more memory than there is") from error


def own_answers(variants: Sequence[Variant], feeds: Mapping[str, Array]) -> list[dict[str, Array] | None]:
    """The reference's outputs of what rules made; shared parts computed once, None where it cannot tell."""
    field = Reals()
    given = {name: lift_value(value, field) for name, value in feeds.items()}
    typed = [v.program for v in variants if not any(node.op is OPAQUE for node in v.program.nodes)]
    found: dict[Program, dict[str, Array]] = {}
    with np.errstate(all="ignore"):
        try:
            found.update(zip(typed, evaluate_all(typed, given, field), strict=True))
        except (BackendError, MemoryError):
            for program in typed:
                with suppress(BackendError, MemoryError):
                    found[program] = evaluate(program, given, field)
    return [found.get(v.program) for v in variants]


def moved(
    program: Program, feeds: Mapping[str, Array], rng: Random, rounding: float, stored: bool = False
) -> dict[str, Array]:
    """The outputs where every float on the way is moved by a few roundings; short constants are not.

    Where results are `stored`, each is rounded to its type.
    """
    field = Reals()
    values: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in program.nodes:
            if len(node.types) > 1:
                continue
            if node.op is INPUT:
                value, exact = field.lift(feeds[node.attribute("name")]), False
            elif node.op is CONSTANT:
                value = field.lift(node.attribute("data").array)
                exact = value.dtype.kind != "f" or bool((value * 1024 == np.round(value * 1024)).all())
            else:
                value, exact = evaluate_node(node, values, field), False
            kind = node.tensor
            if kind.dtype in FLOATS:
                value = np.asarray(value, float)
                if not exact:
                    value = value * (1 + rounding * rng.uniform(-2, 2, value.shape))
                if stored:
                    value = value.astype(numpy_dtype(kind.dtype)).astype(float)
            elif kind.dtype != "bool":
                value = wrap_to_dtype(np.asarray(value), kind.dtype)
            values[node] = value
    return {name: np.asarray(values[node]) for name, node in program.outputs}


# ---------------------------------------------------------------------------------------- the runtime


def run(request: tuple[Sequence[bytes], Sequence[Mapping[str, Array]]], say: Any) -> list[list[list[Any]]]:
    """By file, by level, by assignment: the outputs, or in one line why there are none."""
    contents, feeds = request
    found = []
    for place, content in enumerate(contents):
        levels = []
        for level in LEVELS:
            say(f"{place} {int(level)}")
            levels.append(_run(content, level, feeds))
        found.append(levels)
    return found


def _run(content: bytes, level: Any, feeds: Sequence[Mapping[str, Array]]) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = level
    try:
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return [_line(error)] * len(feeds)
    names = [i.name for i in session.get_inputs()]
    found: list[Any] = []
    for feed in feeds:
        try:
            found.append(session.run(None, {name: feed[name] for name in names}))
        except Exception as error:
            found.append(_line(error))
    return found


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def opcodes(program: Program) -> set[str]:
    """The operators of a program."""
    return {node.op.name for node in program.nodes if isinstance(node.op, Op)}
