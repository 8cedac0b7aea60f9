"""A result's file stores no more bytes of constants than --max-memory allows, whatever is folded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tensaurus import optimize
from tensaurus.check import verify
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.onnx_export import export_with_tensors
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.run.optimization_run import SMALL_CONSTANT_BYTES

# Each grows w of [16, 20], 1280 bytes, or a few numbers.
GROWING = {
    "Tile": ("g = Tile (w, thirty)", "16, 600"),
    "Tile of what is computed": ("s = Mul (w, w) a = Tile (s, thirty) g = Exp (a)", "16, 600"),
    "Expand": ("g = Expand (w, large)", "40, 16, 20"),
    "ConstantOfShape": ("g = ConstantOfShape <value = float[1] {0.5}> (large)", "40, 16, 20"),
    "Pad": ("g = Pad (w, wide)", "216, 20"),
    "Resize": ("""a = Reshape (w, image) g = Resize <mode = "nearest"> (a, , scales)""", "1, 1, 80, 100"),
    "Concat": ("g = Concat <axis = 1> (w, w, w, w, w, w, w, w, w, w, w, w)", "16, 240"),
    "Gather": ("g = Gather <axis = 0> (w, rows)", "200, 20"),
    "OneHot": ("g = OneHot (rows, depth, ends)", "200, 50"),
    "EyeLike": ("a = ConstantOfShape (square) g = EyeLike (a)", "90, 90"),
    "in a body": (
        """g = If (c) <then_branch = t () => (float[16, 600] h) { h = Tile (w, thirty) },
                    else_branch = e () => (float[16, 600] k) { k = Tile (v, thirty) }>""",
        "16, 600",
    ),
}


def growing(text: str, shape: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[{shape}] x, bool c) => (float[{shape}] y)
        <int64[2] thirty = {{1, 30}}, int64[3] large = {{40, 16, 20}}, int64[4] wide = {{100, 0, 100, 0}},
         float[4] scales = {{1, 1, 5, 5}}, int64[4] image = {{1, 1, 16, 20}}, int64[2] square = {{90, 90}},
         int64 depth = {{50}}, float[2] ends = {{0, 1}}>
        {{ {text} p = Mul (x, g) y = Relu (p) }}
        """
    )
    rng = np.random.default_rng(0)
    for name in "wv":
        weights = rng.standard_normal((16, 20)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(200) % 16, "rows"))
    return model


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("name", GROWING)
def test_growing_expressions_stay_beyond_the_memory_limit(name: str) -> None:
    model = growing(*GROWING[name])
    program, own = import_model(model), Build(model.SerializeToString()).constant_bytes
    whole = Build(export_with_tensors(program)[0].SerializeToString()).constant_bytes
    assert whole > 3 * own, "this model does not grow"
    for most in (own, 2 * own, 3 * own):
        bounded, _ = export_with_tensors(program, max_constant_bytes=most)
        onnx.checker.check_model(bounded, full_check=True)
        assert Build(bounded.SerializeToString()).constant_bytes <= most
    assert verify(model, bounded, kinds=("random",)).passed
    fitting = Build(export_with_tensors(program, max_constant_bytes=whole)[0].SerializeToString())
    assert fitting.constant_bytes == whole  # as long as it fits


def test_shrinking_expressions_are_folded_beyond_the_limit() -> None:
    """A sum of a constant's rows, and a Tile beside it: the room that one gives the other may take."""
    model = growing("s = ReduceSum (w, axes) a = Add (s, s) g = Tile (a, thirty)", "1, 600")
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    for most, left in ((3000, ["Mul", "Relu"]), (1500, ["ReduceSum", "Add", "Tile", "Mul", "Relu"])):
        made, _ = export_with_tensors(import_model(model), max_constant_bytes=most)
        assert [n.op_type for n in made.graph.node] == left


@pytest.mark.nightly
def test_the_memory_limit_holds_for_results(tmp_path: Path) -> None:
    """A Tile of 1280 bytes to 38,400 folds, and the limit is of what the model itself stores."""
    model = growing("s = Mul (x, q) t = Tile (w, thirty) u = Mul (s, q) g = Add (u, t)", "16, 600")
    model.graph.initializer.append(numpy_helper.from_array(np.array([2.5], np.float32), "q"))
    result = optimize(model, max_memory=0, threads=1, steps=2, nodes=200, database=tmp_path / "db.sqlite")
    stored = Build(result.model.SerializeToString()).constant_bytes
    assert stored <= Build(model.SerializeToString()).constant_bytes + SMALL_CONSTANT_BYTES
    assert result.summary.constants_mb == stored / 1e6
