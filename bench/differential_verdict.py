"""What the runtime's outputs say of a model and of what rules made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from differential_way import Answer, Case, own_answer
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from sketches.elements import FLOATS, Array

from tensaurus.graph.data import numpy_dtype
from tensaurus.ops import TensorType

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
            agrees = expected.agrees(_third(case.model, feeds))
            kind = "runtime" if agrees or known(case, errors) else "wrong"
            found.append(Finding(kind, (), f"{_at(feeds, place)}{errors[0]}"))
            continue
        found += _apart((), errors, _at(feeds, place))
        for variant, result in zip(variants, others, strict=True):
            found += _variant(case, variant, [r[place] for r in result], expected, feeds, place)
    return list(dict.fromkeys(found))


def _variant(
    case: Case, variant: Any, outputs: Sequence[Any], expected: _Expected, feeds: Any, place: int
) -> list[Finding]:
    where = _at(feeds, place)
    answer = own_answer(variant, feeds) if expected.answer is not None else None
    if answer is not None and (error := expected.differs(answer)):
        return [Finding("wrong", variant.rules, f"{where}in float64: {error}")]
    if all(isinstance(o, str) for o in outputs):
        lacks = place == 0 and any(word in outputs[0] for word in LACKING)
        empty = any(0 in value.shape for value in feeds.values())
        kind = "unsupported" if lacks else "empty" if empty else "wrong"
        return [Finding(kind, variant.rules, f"{where}does not run: {outputs[0]}")]
    errors = [expected.error(o) for o in outputs]
    if all(errors):
        if expected.answer is None:  # who of the two is right?
            agrees = not expected.agrees(_third(case.model, feeds))
        else:
            agrees = answer is not None and expected.agrees(_third(variant.content, feeds))
        return [Finding("runtime" if agrees else "wrong", variant.rules, f"{where}{errors[0]}")]
    return _apart(variant.rules, errors, where)


def _apart(rules: tuple[str, ...], errors: Sequence[str], where: str) -> list[Finding]:
    return [
        Finding("runtime", rules, f"{where}{level}: {error}")
        for level, error in zip(LEVELS, errors, strict=True)
        if error
    ]


def _at(feeds: dict[str, Array], place: int) -> str:
    return f"at {', '.join(f'{n}{list(v.shape)}' for n, v in feeds.items())}: " if place else ""


def _third(content: bytes, feeds: dict[str, Array]) -> Any:
    """What ONNX's own reference evaluator makes of a file; in one line why it makes nothing of it."""
    try:
        with np.errstate(all="ignore"):
            return ReferenceEvaluator(ModelProto.FromString(content)).run(None, feeds)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def known(case: Case, errors: Sequence[str]) -> bool:
    """True for what the runtime computes wrong both ways, and nobody else can say."""
    return False


@dataclass(frozen=True)
class _Expected:
    """What the outputs should be: the reference's, else those of the runtime itself."""

    case: Case
    outputs: Sequence[tuple[str, TensorType]]
    answer: Answer | None
    own: Sequence[Array]

    def agrees(self, results: Any) -> bool:
        return not isinstance(results, str) and not self.error(results)

    def error(self, results: Any) -> str:
        """How results of a runtime differ; empty where they do not, or it has no kernel."""
        if isinstance(results, str):
            if any(word in results for word in LACKING):
                return ""
            return f"does not run: {results}"
        for (name, kind), own, array in zip(self.outputs, self.own, results, strict=True):
            given = np.asarray(array)
            if given.dtype != numpy_dtype(kind.dtype):
                return f"{name} is {given.dtype}, not {kind.dtype}"
            wanted = own if self.answer is None else np.asarray(self.answer.outputs[name])
            if given.shape != wanted.shape:
                return f"{name} has the shape {list(given.shape)}, not {list(wanted.shape)}"
            if error := self._off(name, kind, given, wanted, self.case.rounding):
                return error
        return ""

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
            if not wrong.any():
                return ""
        elif np.allclose(left, right, rtol=1e-3, atol=1e-3, equal_nan=True):
            return ""
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"{name}{list(place)} is {given[place]}, not {wanted[place]}"


def _integers(value: Array) -> Array:
    """Integers of any type as the bits of int64."""
    return value.view(np.int64) if value.dtype == np.uint64 else value.astype(np.int64)
