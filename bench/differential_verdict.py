"""What the runtime's outputs say of a model and of what rules made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from differential_way import Answer, Case, Undefined, Variant, opcodes, own_answers, run
from differential_way import answer as referenced
from onnx import ModelProto, TensorProto
from onnx.helper import np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array, to_array
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_shapes
from sketches.elements import FLOATS, Array

from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType
from tensaurus.system.errors import TensaurusError

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
FRAGILE = {"MeanVarianceNormalization"}  # the runtime takes the root of E[x * x] - E[x]^2, rounded
RUNNING = {"LRN"}  # the runtime subtracts what left the window: infinity less infinity, for all that follow
LEVELS = ("without optimizations", "with optimizations")
LACKING = ("NOT_IMPLEMENTED", "Could not find an implementation", "NotImplemented")


@dataclass(frozen=True)
class Finding:
    """What is not right.

    verdict   wrong, runtime, empty or unsupported
    of        the rules that made the program, none where it is the model itself
    """

    verdict: str
    of: tuple[str, ...]
    detail: str


def judge(case: Case, results: Sequence[Sequence[Sequence[Any]]]) -> list[Finding]:
    """Everything that is not right, by `results` of the model and then of its variants."""
    found: list[Finding] = []
    own, *others = results
    variants = [v for v in case.variants if v.content]
    outputs = [(name, case.sketch.types[name]) for name, _ in case.program.outputs]
    for place, (feeds, answer) in enumerate(zip(case.feeds, case.answers, strict=True)):
        base = [own[0][place], own[1][place]]
        if all(isinstance(b, str) for b in base):
            if place == 0:
                return [Finding("unsupported", (), base[0])]
            continue
        expected = _Expected(case, outputs, answer, next(b for b in base if not isinstance(b, str)))
        errors = [expected.error(b) for b in base]
        if all(errors):
            ran = not any(isinstance(b, str) for b in base)
            # memory that nobody wrote
            apart = ran and bool(_Expected(case, outputs, None, base[0]).error(base[1]))
            apart = apart or expected.hides_subtraction(base) or expected.confirmed(case.model, feeds, base)
            kind = "runtime" if apart else "wrong"
            found.append(Finding(kind, (), f"{_at(feeds, place)}{errors[0]}"))
            continue
        found += _apart((), errors, _at(feeds, place))
        answers = own_answers(variants, feeds) if answer is not None else [None] * len(variants)
        for variant, result, made in zip(variants, others, answers, strict=True):
            found += _variant(case, variant, [r[place] for r in result], expected, made, place)
    return list(dict.fromkeys(_agreed(found)))


def _agreed(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Return the findings: a fault of the runtime is one at all sizes, told or not."""
    faults = {(f.of, _without_sizes(f.detail)) for f in findings if f.verdict == "runtime"}
    for f in findings:
        known = f.verdict == "wrong" and (f.of, _without_sizes(f.detail)) in faults
        yield replace(f, verdict="runtime") if known else f


def _without_sizes(detail: str) -> str:
    return detail.partition("]: ")[2] if detail.startswith("at ") else detail


def _variant(
    case: Case,
    variant: Variant,
    outputs: Sequence[Any],
    expected: _Expected,
    answer: dict[str, Array] | None,
    place: int,
) -> list[Finding]:
    """What is not right of a variant at one assignment; `answer` is the reference's of the variant itself."""
    feeds = case.feeds[place]
    where = _at(feeds, place)
    if answer is not None and (error := expected.differs(answer)):
        return [Finding("wrong", variant.rules, f"{where}in float64: {error}")]
    if all(isinstance(o, str) for o in outputs):
        lacks = any(word in outputs[0] for word in LACKING)
        meaningless = expected.answer is None and place  # no specification gives it a value there
        kind = "runtime" if meaningless else "empty" if _meets_empty(variant.content, feeds) else "wrong"
        kind = "unsupported" if lacks else kind
        return [Finding(kind, variant.rules, f"{where}does not run: {outputs[0]}")]
    errors = [expected.error(o) for o in outputs]
    if all(errors):
        if expected.answer is None and place:  # the model has no meaning at these sizes
            apart = not expected.sided(case.model, feeds, outputs) or _fault_within(case.model, feeds)
        elif expected.answer is None:  # who of the two is right?
            apart = expected.refuted(case.model, feeds)
        else:
            apart = answer is not None and expected.confirmed(variant.content, feeds, outputs)
        return [Finding("runtime" if apart else "wrong", variant.rules, f"{where}{errors[0]}")]
    return _apart(variant.rules, errors, where)


def _meets_empty(content: bytes, feeds: dict[str, Array]) -> bool:
    """Whether there is a tensor without elements: an input, or one on the way at these sizes."""
    try:
        program = import_model(
            ModelProto.FromString(content), {name: value.shape for name, value in feeds.items()}
        )
    except TensaurusError:
        return any(0 in value.shape for value in feeds.values())
    return any(0 in k.shape for node in program.nodes for k in node.types if isinstance(k, TensorType))


def _apart(rules: tuple[str, ...], errors: Sequence[str], where: str) -> list[Finding]:
    return [
        Finding("runtime", rules, f"{where}{level}: {error}")
        for level, error in zip(LEVELS, errors, strict=True)
        if error
    ]


def _at(feeds: dict[str, Array], place: int) -> str:
    return f"at {', '.join(f'{n}{list(v.shape)}' for n, v in feeds.items())}: " if place else ""


def _third(content: bytes, feeds: dict[str, Array], name: str) -> Array | None:
    """What ONNX's own reference evaluator makes of one output of a file; None where it makes nothing.

    Where it cannot compute in a narrow type (functions whose constants are float32), it does in float32.
    """
    model = _part(ModelProto.FromString(content), name)
    given = {i.name: feeds[i.name] for i in model.graph.input}
    kind = model.graph.output[0].type.tensor_type.elem_type if model.graph.output else 0
    found = _evaluated(model, given)
    if found is None and _widen(model):
        wide = {n: v.astype(np.float32) if _type_of(v) in NARROW else v for n, v in given.items()}
        found = _evaluated(model, wide)
        if found is not None and kind in NARROW:
            found = found.astype(tensor_dtype_to_np_dtype(kind))
    return found


def _evaluated(model: ModelProto, feeds: dict[str, Array]) -> Array | None:
    try:
        with np.errstate(all="ignore"):
            (found,) = ReferenceEvaluator(model).run(None, feeds)
            return np.asarray(found)
    except Exception:
        return None


def _type_of(value: Array) -> int:
    return int(np_dtype_to_tensor_dtype(value.dtype))


def _widen(model: ModelProto) -> bool:
    """Let what is computed in a narrow type be float32; says whether there was any."""
    changed = False
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in NARROW:
            value.type.tensor_type.elem_type, changed = TensorProto.FLOAT, True
    for tensor in graph.initializer:
        if tensor.data_type in NARROW:
            tensor.CopyFrom(from_array(to_array(tensor).astype(np.float32), tensor.name))
            changed = True
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.name in ("to", "dtype") and attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
    return changed


def _part(model: ModelProto, name: str) -> ModelProto:
    """What of a model one value needs, which is its output."""
    part = ModelProto()
    part.CopyFrom(model)
    needed, nodes = {name}, []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed.update(node.input)
            nodes.insert(0, node)
    outputs = [o for o in (*model.graph.output, *model.graph.value_info) if o.name == name]
    inputs = [i for i in model.graph.input if i.name in needed]
    kept = [i for i in model.graph.initializer if i.name in needed]
    for entries, chosen in (("node", nodes), ("output", outputs), ("input", inputs), ("initializer", kept)):
        del getattr(part.graph, entries)[:]
        getattr(part.graph, entries).extend(chosen)
    return part


def _fault_within(content: bytes, feeds: dict[str, Array]) -> bool:
    """Whether there is a value on the way of which two references say the same, and the runtime another."""
    model = infer_shapes(ModelProto.FromString(content))
    for name in dict.fromkeys(output for node in model.graph.node for output in node.output):
        part = _part(model, name)
        given = {i.name: feeds[i.name] for i in part.graph.input}
        third = _third(part.SerializeToString(), given, name) if part.graph.output else None
        if third is None:
            continue
        try:
            own = np.asarray(referenced(part, import_model(part), given).outputs[name])
        except (TensaurusError, Undefined):
            continue
        (theirs,) = run(([part.SerializeToString()], [given]), lambda phase: None)[0][0]
        if not isinstance(theirs, str) and _alike(own, third) and not _alike(own, theirs[0]):
            return True
    return False


def _alike(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    with np.errstate(all="ignore"):
        return np.allclose(a.astype(float), b.astype(float), rtol=1e-2, atol=1e-3, equal_nan=True)


@dataclass(frozen=True)
class _Expected:
    """What the outputs should be: the reference's, else those of the runtime itself."""

    case: Case
    outputs: Sequence[tuple[str, TensorType]]
    answer: Answer | None
    own: Sequence[Array]

    def confirmed(self, content: bytes, feeds: dict[str, Array], results: Sequence[Any]) -> bool:
        """Whether two references agree where the runtime differs: at its outputs, or on the way there."""
        places = self._differing(results)
        return bool(places) and (self.sided(content, feeds, results) or _fault_within(content, feeds))

    def sided(self, content: bytes, feeds: dict[str, Array], results: Sequence[Any]) -> bool:
        """Whether ONNX's evaluator has what is expected at every output in which results differ."""
        return all(self._third_error(content, feeds, k) == "" for k in self._differing(results))

    def hides_subtraction(self, results: Sequence[Any]) -> bool:
        """Whether results differ by NaN alone, where a kernel subtracts what may be rounded or infinite."""
        if not opcodes(self.case.program) & (FRAGILE | RUNNING if self.case.strange else FRAGILE):
            return False
        wanted = [
            self.own[k] if self.answer is None else self.answer.outputs[n]
            for k, (n, _) in enumerate(self.outputs)
        ]
        for found in (result for result in results if not isinstance(result, str)):
            for given, right in zip(found, wanted, strict=True):
                known = ~np.isnan(np.asarray(given, float))
                if known.shape != np.shape(right) or not _alike(
                    np.asarray(given)[known], np.asarray(right)[known]
                ):
                    return False
        return True

    def _differing(self, results: Sequence[Any]) -> set[int]:
        return {k for r in results if not isinstance(r, str) for k, e in enumerate(self.errors(r)) if e}

    def refuted(self, content: bytes, feeds: dict[str, Array]) -> bool:
        """Whether ONNX's evaluator finds the runtime's own results of the file wrong."""
        return any(self._third_error(content, feeds, k) for k in range(len(self.outputs)))

    def _third_error(self, content: bytes, feeds: dict[str, Array], place: int) -> str | None:
        third = _third(content, feeds, self.outputs[place][0])
        return None if third is None else self._error(place, third)

    def error(self, results: Any) -> str:
        """How results of a runtime differ; empty where they do not, or it has no kernel."""
        if isinstance(results, str):
            return "" if any(word in results for word in LACKING) else f"does not run: {results}"
        return next(filter(None, self.errors(results)), "")

    def errors(self, results: Sequence[Any]) -> list[str]:
        """How each output differs."""
        return [self._error(place, array) for place, array in enumerate(results)]

    def _error(self, place: int, array: Any) -> str:
        (name, kind), given = self.outputs[place], np.asarray(array)
        if given.dtype != numpy_dtype(kind.dtype):
            return f"{name} is {given.dtype}, not {kind.dtype}"
        wanted = self.own[place] if self.answer is None else np.asarray(self.answer.outputs[name])
        if given.shape != wanted.shape:
            return f"{name} has the shape {list(given.shape)}, not {list(wanted.shape)}"
        return self._off(name, kind, given, wanted, self.case.rounding)

    def differs(self, found: dict[str, Array]) -> str:
        """How the reference's own outputs differ, in float64."""
        assert self.answer is not None
        for name, kind in self.outputs:
            wanted, given = np.asarray(self.answer.outputs[name]), np.asarray(found[name])
            if given.shape != wanted.shape:
                return f"{name} has the shape {list(given.shape)}, not {list(wanted.shape)}"
            if error := self._off(name, kind, given, wanted, 2.0**-44):
                return error
        return ""

    def _off(self, name: str, kind: TensorType, given: Array, wanted: Array, rounding: float) -> str:
        if kind.dtype not in FLOATS:
            left, right = (_integers(a) for a in (given, wanted))
            wrong = left != right
            off, scale = wrong.astype(float), np.zeros(wrong.shape)
        else:
            with np.errstate(all="ignore"):
                left, right = given.astype(float), wanted.astype(float)
            if self.answer is not None and not self.case.holds(self.answer):
                return ""
            with np.errstate(all="ignore"):
                same = (left == right) | (np.isnan(left) & np.isnan(right))
                off = np.where(same, 0, np.abs(left - right))
                finite = np.abs(right[np.isfinite(right)])
                scale = rounding * (64 * np.abs(right) + 32 * (finite.max() if finite.size else 0))
                wrong = ~(same | (off <= scale))
            if self.case.strange and self.answer is not None:
                wrong &= ~np.isnan(right)  # 0 * inf, where a kernel may skip the 0
        if not wrong.any():
            return ""
        if self.answer is not None:
            allowed = self.answer.allowed(name, rounding)
            with np.errstate(all="ignore"):
                wrong &= ~(
                    (off <= allowed + scale) | np.isinf(allowed) | (allowed > 0) & (kind.dtype not in FLOATS)
                )
            if wrong.any():
                with np.errstate(all="ignore"):
                    stored = self.answer.stored(name)
                    wrong &= ~((given == stored) | (np.abs(left - stored.astype(float)) <= scale))
            if not wrong.any():
                return ""
        elif np.allclose(left, right, rtol=1e-3, atol=1e-3, equal_nan=True):
            return ""
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"{name}{list(place)} is {given[place]}, not {wanted[place]}"


def _integers(value: Array) -> Array:
    """Integers of any type as the bits of int64."""
    return value.view(np.int64) if value.dtype == np.uint64 else value.astype(np.int64)
