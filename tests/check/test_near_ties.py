"""Scores that differ by less than rounding may change places; what differs otherwise is a difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tensaurus.check import Verdict, verify
from tensaurus.check.files.baseline import PERTURBED_COPIES
from tensaurus.check.files.compared_model import ComparedModel
from tensaurus.check.files.near_ties import pin_scores
from tensaurus.check.files.reference_answers import ReferenceAnswers
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.run.accuracy_probe import SMALL_ERROR, AccuracyProbe

TOP = "v, i = TopK <axis = 0> (s, six_hundred) b = Gather <axis = 0> (boxes, i)"
RAREST = "v, i = TopK <axis = 0, largest = 0> (s, six_hundred) b = Gather <axis = 0> (boxes, i)"
SHIFTED = "v, i = TopK <axis = 0> (s, six_hundred) j = Add (i, one) b = Gather <axis = 0> (boxes, j)"
OTHER = "v, k = TopK <axis = 0> (s, six_hundred) b = Gather <axis = 0> (boxes, k) i = {}"
HEAD = "float[600] v, int64[600] i, float[600,4] b"


def detector(
    end: str = TOP, head: str = HEAD, seed: int = 0, changed: Mapping[str, float] | None = None
) -> onnx.ModelProto:
    """Give 1152 scores within 0.02 of 0.5, and as many boxes; the seed moves weights by some roundings."""
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        detector (float[1,3,24,24] x) => ({head})
        <int64[1] six_hundred = {{600}}, int64[1] flat = {{-1}}, int64[2] four = {{-1, 4}},
        int64[1] one = {{1}}, int64[3] batch = {{1, -1, 4}}, int64[3] classes = {{1, 1, -1}},
         int64 many = {{600}}, float near = {{0.9}}>
        {{
            c = Conv <pads = [1,1,1,1]> (x, w) r = Relu (c)
            s0 = Conv (r, scoring) s1 = Reshape (s0, flat) s = Sigmoid (s1)
            b0 = Conv (r, boxing) b1 = Transpose <perm = [0,2,3,1]> (b0) boxes = Reshape (b1, four)
            {end}
        }}
        """
    )
    rng, other = np.random.default_rng(5), np.random.default_rng(seed)
    for name, shape, scale in (
        ("w", (16, 3, 3, 3), 1.0), ("scoring", (2, 16, 1, 1), 1e-3), ("boxing", (8, 16, 1, 1), 1.0)
    ):  # fmt: skip
        array = rng.standard_normal(shape) * scale
        array = array * (1 + 4e-7 * other.standard_normal(shape)) if seed else array
        array[0] *= (changed or {}).get(name, 1.0)
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def compared(a: onnx.ModelProto, b: onnx.ModelProto) -> Verdict:
    return verify(a, b, kinds=("random", "blocks"), threads=1)


ENDS = {
    "TopK": (TOP, HEAD),
    "ArgMax": ("i = ArgMax <axis = 0> (s) b = Gather <axis = 0> (boxes, i)", "int64[1] i, float[1,4] b"),
    "NonMaxSuppression": (
        """bs = Reshape (boxes, batch) ss = Reshape (s, classes) sel = NonMaxSuppression (bs, ss, many, near)
           t = Cast <to = 1> (sel) b = Add (t, t)""",
        "int64[n,3] sel, float[n,3] b",
    ),
    "behind another": (
        """v, i = TopK <axis = 0> (s, six_hundred) g = Gather <axis = 0> (boxes, i)
           m = ReduceSum <keepdims = 0> (g, one) j = ArgMax <axis = 0> (m) b = Gather <axis = 0> (g, j)""",
        "float[600] v, int64[1] j, float[1,4] b",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_near_ties_may_change_places(name: str) -> None:
    """Where weights are some roundings apart, some of 1152 scores change places."""
    end, head = ENDS[name]
    assert compared(detector(end, head), detector(end, head, seed=1)).passed


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize(
    "other",
    [
        detector(RAREST, seed=1),
        detector(SHIFTED, seed=1),
        detector(seed=1, changed={"boxing": 1.01}),
        detector(seed=1, changed={"scoring": 1.02}),
        detector(TOP.replace("(s, six_hundred)", "(s1, six_hundred)"), seed=1),
        detector(OTHER.format("Add (k, one)"), seed=1),
        detector(OTHER.format("Sub (many, k)"), seed=1),
        detector(seed=1, changed={"boxing": 1.0001}),
    ],
)
def test_what_no_near_tie_explains_is_a_difference(other: onnx.ModelProto) -> None:
    """The least instead of the largest, the next row, other boxes, other scores, other indices."""
    assert not compared(detector(), other).passed


def test_the_trial_of_fast_algorithms_does_not_mind_near_ties(tmp_path: Path) -> None:
    model = detector()
    source, feed = Build.from_model(model, tmp_path), np.random.default_rng(1).standard_normal((1, 3, 24, 24))
    feeds = [{"x": feed.astype(np.float32)}]
    answers = ReferenceAnswers(source)
    probe = AccuracyProbe(model, source, feeds[0], {}, "onnxruntime", 1, 60.0, answers, tmp_path)
    assert probe.measure_error(Build.from_model(detector(seed=1), tmp_path), feeds) < 4
    wrong = Build.from_model(detector(seed=1, changed={"boxing": 1.01}), tmp_path)
    assert probe.measure_error(wrong, feeds) > 100


def test_copies_of_the_original_run_only_where_they_may_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They allow more: an error that is small without them needs none."""
    model, copied = detector(), list[int]()
    perturbed = ComparedModel.perturbed

    def copy(self: ComparedModel, seed: int, *others: Any) -> Build:
        copied.append(seed)
        return perturbed(self, seed, *others)

    monkeypatch.setattr(ComparedModel, "perturbed", copy)
    source, feed = Build.from_model(model, tmp_path), np.random.default_rng(1).standard_normal((1, 3, 24, 24))
    feeds = [{"x": feed.astype(np.float32)}]
    probe = AccuracyProbe(
        model, source, feeds[0], {}, "onnxruntime", 1, 60.0, ReferenceAnswers(source), tmp_path
    )
    assert probe.measure_error(source, feeds) <= SMALL_ERROR and not copied
    wrong = Build.from_model(detector(seed=1, changed={"boxing": 1.01}), tmp_path)
    assert probe.measure_error(wrong, feeds) > 100 and len(copied) == PERTURBED_COPIES


def test_what_is_pinned() -> None:
    pair = pin_scores(detector(), detector(seed=1))
    assert (
        pair is not None and pair.dependent_outputs == {"v", "i", "b"} and list(pair.inputs) == ["pinned_v_0"]
    )
    assert [v.name for v in pair.scores.graph.output] == ["scores_of_v_0"]
    assert pin_scores(detector(), detector(RAREST)) is None  # another order
    assert pin_scores(detector("v, i = TopK <axis = 0> (flat, one)", "int64[1] v"), detector()) is None
