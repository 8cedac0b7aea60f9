"""Slice at every bound, size and step is what a runtime computes, at static and at dynamic sizes."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.runtimes.backends.reference import Session

BOUNDS = (-7, -3, -2, -1, 0, 1, 2, 6, 2**31 - 1, 2**63 - 1, -(2**63))


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("step", [-2, -1, 1, 3])
def test_slices_are_what_they_are_on_a_runtime(step: int) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    compared = 0
    for start, end in product(BOUNDS, repeat=2):
        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 18]> net (float[N] x) => (float[K] y) {'
            f" s = Constant <value_ints = [{start}]> ()  e = Constant <value_ints = [{end}]> ()"
            f" a = Constant <value_ints = [0]> ()  t = Constant <value_ints = [{step}]> ()"
            " y = Slice(x, s, e, a, t) }"
        )
        runtime = ort.InferenceSession(model.SerializeToString(), options)
        dynamic = import_model(model)
        if step < 0 and end >= 2**31 - 1:  # runtimes do not agree with the specification
            assert not dynamic.outputs[0][1].is_declared
            continue
        assert dynamic.outputs[0][1].is_declared
        for size in (0, 1, 2, 3, 5):
            x = np.arange(size, dtype=np.float32)
            (wanted,) = runtime.run(None, {"x": x})
            for program in (dynamic, import_model(model, {"x": [size]})):
                (found,) = Session(program).run(None, {"x": x})
                np.testing.assert_array_equal(found, wanted, err_msg=f"{start} {end} of {size}")
                compared += 1
    assert compared >= 900
