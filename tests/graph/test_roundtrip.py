"""ONNX's own backend tests, imported and exported: the same outputs, to the bit where nothing was computed.

Three passes over every case that onnxruntime runs:
as written, nothing folded; as written, folded; and `bound`, where all inputs but the first become
initializers, as shapes, axes and scales are in real models: then a declared operator must be typed.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper

from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType, registry
from tensaurus.system.errors import TensaurusError

PARTS = 8  # the corpus in parts, for several processes

# Why a declared operator may be opaque although its inputs have static shapes.
REASONS = {
    r"its input \w+ \(.*\) is not constant": "the value, not the shape, is what is missing",
    r"is known only at run time": "a size that another opaque node decides",
    r"training mode": "random, or with running statistics",
    r"(Cast|CastLike|QuantizeLinear|DequantizeLinear) of \w+|(a conversion|quantization) to \w+": (
        "element types that the algebra does not round to"
    ),
    r"of string": "text has no arithmetic",
    r"MaxPool has 1 outputs here": "indices of the maxima are not declared",
    r"of opset \d differs from that of [789]": "before, broadcasting was an attribute",
    r"interpolation cubic|mode tf_crop_and_resize|antialiasing|is not exact": "an undeclared mode of Resize",
    r"on which runtimes disagree|which runtimes refuse": "what onnxruntime reads otherwise than ONNX",
    r"parts \(.*-1\) of": "wrong in the model itself, in a branch that is not taken",
    r"object of type 'int' has no len": "axes of rank 0, which ONNX forbids and onnxruntime accepts",
}


@dataclass(frozen=True)
class Case:
    name: str
    model: ModelProto
    inputs: tuple[Any, ...]


@dataclass
class Tally:
    """What a pass over a part of the corpus found."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)


@cache
def corpus() -> tuple[Case, ...]:
    """Every node test, every model test with data, and the model files that onnx ships."""
    from onnx.backend.test.case import node
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [*node.collect_testcases(None)]
        for kind in ("simple", "pytorch-operator", "pytorch-converted"):
            found += load_model_tests(kind=kind)
    return tuple(_cases(found))


def _cases(found: list[Any]) -> Iterator[Case]:
    from pathlib import Path

    for case in found:
        if case.model is not None:
            data = case.data_sets[0][0] if case.data_sets else ()
            yield Case(case.name, case.model, tuple(data))
        elif case.model_dir is not None:
            model = onnx.load_model(Path(case.model_dir) / "model.onnx")
            folder = Path(case.model_dir) / "test_data_set_0"
            files = sorted(folder.glob("input_*.pb"), key=lambda f: int(re.findall(r"\d+", f.stem)[-1]))
            initial = {t.name for t in model.graph.initializer}
            values = [i for i in model.graph.input if i.name not in initial]
            if all(v.type.HasField("tensor_type") for v in values) and len(files) >= len(values):
                data = tuple(_array(file.read_bytes()) for file in files[: len(values)])
                yield Case(case.name, model, data)


def _array(raw: bytes) -> Any:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(raw)
    return numpy_helper.to_array(tensor)


def run(model: ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def same(a: Any, b: Any) -> bool:
    """Equal to the bit; lists and dicts element by element."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a == b).all()) if a.dtype == object else a.tobytes() == b.tobytes()


def close(a: Any, b: Any) -> bool:
    """Equal but for the rounding of folded constants: a few units of the output's own type."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if same(a, b):
        return True
    if not isinstance(a, np.ndarray) or a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind != "f":
        return False
    tolerance = 16 * float(np.finfo(a.dtype).eps)
    size = float(np.nanmax(np.abs(a[np.isfinite(a)]), initial=1.0))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True))


def bound(case: Case) -> Case | None:
    """The case with every input but the first as an initializer; None where that changes nothing."""
    initial = {t.name for t in case.model.graph.initializer}
    values = [v for v in case.model.graph.input if v.name not in initial]
    pairs = list(zip(values, case.inputs, strict=False))[1:]
    plain = [(v, a) for v, a in pairs if isinstance(a, np.ndarray) and v.type.HasField("tensor_type")]
    if not plain or len(case.inputs) != len(values):
        return None
    model = ModelProto()
    model.CopyFrom(case.model)
    gone = {v.name for v, _ in plain}
    kept = [v for v in model.graph.input if v.name not in gone]
    arrays = [a for v, a in zip(values, case.inputs, strict=True) if v.name not in gone]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(a, v.name) for v, a in plain)
    model.ir_version = max(model.ir_version, 4)
    return Case(case.name, model, tuple(arrays))


def unexplained(program: Program) -> Iterator[str]:
    """Declared operators that are opaque at static shapes for no accepted reason."""
    for node in program.opaque:
        form = node.attribute("form")
        kinds = [a.types[0] for a in node.args if a is not None]
        static = all(isinstance(kind, TensorType) and kind.static for kind in kinds)
        if form.operator in registry and static and not any(re.search(r, form.reason) for r in REASONS):
            yield f"{form.operator}: {form.reason}"
        for _, body in form.bodies:
            yield from unexplained(body)


def check(case: Case, folded: bool, tally: Tally) -> None:
    initial = {t.name for t in case.model.graph.initializer}
    names = [v.name for v in case.model.graph.input if v.name not in initial]
    feeds = dict(zip(names, case.inputs, strict=False))
    try:
        program = import_model(case.model)
        exported = export_model(program, folded=folded)
    except TensaurusError as error:
        tally.wrong.append(f"{case.name}: {error}")
        return
    tally.counts["typed"] += sum(node.is_declared for node in program.nodes)
    tally.counts["opaque"] += len(program.opaque)
    tally.unexplained += [f"{case.name}: {reason}" for reason in unexplained(program)]
    implied = initial if case.model.ir_version < 4 else set()
    inputs = [v for v in case.model.graph.input if v.name not in implied]
    if inputs != list(exported.graph.input) or case.model.graph.output != exported.graph.output:
        tally.wrong.append(f"{case.name}: another interface")
    try:
        expected = run(case.model, feeds)
    except Exception:
        tally.counts["onnxruntime cannot run"] += 1
        return
    if any(not _repeats(node) for node in case.model.graph.node):
        tally.counts["random, shapes alone compared"] += 1
        got = run(exported, feeds)
        if [np.shape(a) for a in got] != [np.shape(a) for a in expected]:
            tally.wrong.append(f"{case.name}: another shape")
        return
    try:
        got = run(exported, feeds)
    except Exception as error:
        tally.wrong.append(f"{case.name}: {str(error)[:200]}")
        return
    equal = close if folded else same
    if len(got) == len(expected) and all(map(equal, expected, got)):
        tally.counts["equal"] += 1
    else:
        tally.wrong.append(f"{case.name}: other outputs")


def _repeats(node: onnx.NodeProto) -> bool:
    """Random operators and training are not the same twice."""
    return not (node.op_type in ("Bernoulli", "Multinomial") or node.op_type.startswith("Random"))


def report_tally(title: str, tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(tally.counts.items()))
    with capsys.disabled():
        print(f"\n{title}: {counts}")


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_corpus_is_unchanged(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    for case in corpus()[part::PARTS]:
        check(case, False, tally)
    report_tally(f"corpus {part + 1}/{PARTS}", tally, capsys)
    assert tally.wrong == []
    assert tally.unexplained == []
    assert tally.counts["equal"] > 100


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_corpus_folded_and_bound(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs that are initializers, as in real models: what is declared is typed, what is static folds."""
    plain, typed = Tally(), Tally()
    for case in corpus()[part::PARTS]:
        check(case, True, plain)
        other = bound(case)
        if other is not None:
            check(other, True, typed)
    report_tally(f"corpus folded {part + 1}/{PARTS}", plain, capsys)
    report_tally(f"corpus bound and folded {part + 1}/{PARTS}", typed, capsys)
    assert plain.wrong + typed.wrong == []
    assert plain.unexplained + typed.unexplained == []


def test_names_of_nodes_are_of_this_model() -> None:
    """Equal nodes of two models are one node: what one of them was called is nothing to the other."""
    text = (
        '<ir_version: 8, opset_import: ["": 17, "other": 1]> net (float[2] x) => (float[2] y)'
        " { a = other.Unknown(x)  b = Relu(a)  y = Neg(b) }"
    )
    first, second = onnx.parser.parse_model(text), onnx.parser.parse_model(text)
    first.graph.node[0].name = "y"
    for model in (first, second):
        names = [node.name for node in export_model(import_model(model)).graph.node]
        assert len(names) == len(set(names)) == 3
    assert export_model(import_model(second)) == export_model(import_model(first))
