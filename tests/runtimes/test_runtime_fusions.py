"""What a runtime makes of a file may be wrong at some sizes of a dynamic model: verify looks there."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto

from tensaurus.check.files.verdict import verify

# onnxruntime fuses the Pad into the pool, whose last window then begins in the padding: one less at odd sizes
POOL = "kernel_shape = [2,2], strides = [2,2], ceil_mode = 1, count_include_pad = 1"
PADDED = f"""
    net (float[N,1,{{size}},{{size}}] x) => (float[N,1,A,B] y) <int64[8] p = {{{{0,0,1,1,0,0,1,1}}}}>
    {{{{ q = {{pad}} y = AveragePool <{POOL}> (q) }}}}
"""
# the same, in a form that is not fused
APART = "Pad (x, p) r = Neg (q0) q = Neg (r)"


def model(size: str, pad: str) -> ModelProto:
    text = PADDED.format(size=size, pad=pad).replace("q = Pad (x, p) r", "q0 = Pad (x, p) r")
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{text}')


@pytest.mark.parametrize("size", ["H", "9"])
def test_a_wrong_fusion_is_caught_at_every_size(size: str) -> None:
    """At 32, 64 and 48, which are tried first, it is right."""
    verdict = verify(model(size, APART), model(size, "Pad (x, p)"), threads=1)
    assert not verdict.passed
    assert verify(model(size, APART), model(size, APART), threads=1).passed


def test_a_size_without_a_meaning_is_no_reason_to_leave_float64_out() -> None:
    """Two rows under a window of three: onnxruntime has no rows for it, and the reference refuses."""
    pool = "net (float[1,1,H,9] x) => (float[1,1,A,B] y) { y = AveragePool <kernel_shape = [3,3]> (x) }"
    found = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{pool}')
    verdict = verify(found, found, threads=1)
    assert verdict.passed
    assert any("x=1,1,2,9" in kind for kind in verdict.inputs)
    assert not [note for note in verdict.notes if "float64" in note]
