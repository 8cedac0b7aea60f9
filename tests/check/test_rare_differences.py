"""Models that differ only at sizes, rows, ties or rounds that random inputs seldom meet."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tensaurus.check import Verdict, verify

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
CONSTANTS = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {300}, int64[1] beyond = {100000},
    int64 seventeen = {17}, int64 eighteen = {18}, int64 six = {6}, float scale = {0.1}, float other = {0.3},
    uint8 point = {100}, float half = {0.5}>"""


def model(signature: str, body: str, **tables: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f"{HEAD} g {signature} {CONSTANTS} {{ {body} }}")
    for name, table in tables.items():
        made.graph.initializer.append(numpy_helper.from_array(table, name))
    return made


def compared(a: onnx.ModelProto, b: onnx.ModelProto) -> Verdict:
    return verify(a, b, kinds=("random", "edges"), threads=1)


LONG = "(float[1, L] x) => (float[1, M] y)"
SIZED = "(float[B, L] x) => (float[B, L] y)"
WIDTH = "s = Shape (x) n = Gather (s, one) w = Cast <to = 1> (n)"
UNEQUAL_SIZES = {
    "a slice at 300": (LONG, "y = Slice (x, zero, last, one)", "y = Identity (x)"),
    "a width of 17": (
        SIZED,
        "s = Shape (x) n = Gather (s, one) c = Equal (n, seventeen) f = Cast <to = 1> (c) y = Add (x, f)",
        "s = Shape (x) n = Gather (s, one) c = Equal (n, eighteen) f = Cast <to = 1> (c) y = Add (x, f)",
    ),
    "a batch over 6": (
        SIZED,
        "s = Shape (x) n = Gather (s, zero) c = Greater (n, six) f = Cast <to = 1> (c) y = Add (x, f)",
        "y = Identity (x)",
    ),
    "a width capped at 300": (
        SIZED,
        f"{WIDTH} m = Min (n, last) f = Cast <to = 1> (m) y = Mul (x, f)",
        f"{WIDTH} y = Mul (x, w)",
    ),
}


@pytest.mark.nightly(every=2)
@pytest.mark.parametrize("name", UNEQUAL_SIZES)
def test_sizes_that_constants_meet_are_tried(name: str) -> None:
    signature, one, other = UNEQUAL_SIZES[name]
    assert not compared(model(signature, one), model(signature, other)).passed
    assert compared(model(signature, one), model(signature, one)).passed


ROUNDED = "(float[8, 8] x) => (float[8, 8] y)"
UNEQUAL_TIES = {
    "halves go up": ("y = Round (x)", "a = Add (x, half) y = Floor (a)"),
    "ties of a scale": (
        "q = QuantizeLinear (x, scale, point) y = DequantizeLinear (q, scale, point)",
        "d = Div (x, scale) a = Add (d, half) f = Floor (a) y = Mul (f, scale)",
    ),
}


@pytest.mark.parametrize("name", UNEQUAL_TIES)
def test_ties_of_a_rounding_are_edges(name: str) -> None:
    one, other = UNEQUAL_TIES[name]
    assert not compared(model(ROUNDED, one), model(ROUNDED, other)).passed
    assert compared(model(ROUNDED, one), model(ROUNDED, one)).passed


def test_rows_in_which_tables_differ_are_looked_up() -> None:
    table = np.random.default_rng(0).standard_normal((30_000, 4)).astype(np.float32)
    changed = table.copy()
    changed[12_345, 2] += 0.01
    signature, body = "(int64[3] i) => (float[3, 4] y)", "y = Gather <axis = 0> (t, i)"
    assert not compared(model(signature, body, t=table), model(signature, body, t=changed)).passed
    assert compared(model(signature, body, t=table), model(signature, body, t=table.copy())).passed


def test_loops_run_a_few_rounds() -> None:
    """From the third round on one adds x, the other nothing."""
    signature = "(int64 n, float[2] x) => (float[2] y)"
    body = """c = Constant <value = bool {{1}}> ()
        y = Loop (n, c, x) <body = b (int64 k, bool go, float[2] v) => (bool on, float[2] w)
            {{ on = Identity (go) two = Constant <value = int64 {{2}}> ()
               far = Less ({}) f = Cast <to = 1> (far) a = Mul (v, f) w = Add (v, a) }}>"""
    one, other = (model(signature, body.format(order)) for order in ("two, two", "two, k"))
    assert not compared(one, other).passed
    assert compared(other, other).passed
    assert not any("was only 0 and 1" in note for note in compared(one, one).notes)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("RandomUniform <low = 0.0, high = 1.0,", "RandomUniform <low = 0.0, high = 1.3,", False),
        ("RandomUniform <low = 0.0, high = 1.0,", "RandomUniform <low = 0.0, high = 1.0,", True),
        ("RandomNormal <mean = 0.0,", "RandomNormal <mean = 0.5,", False),
        ("RandomNormal <scale = 1.0,", "RandomNormal <scale = 1.5,", False),
        ("RandomNormal <scale = 1.0,", "RandomNormal <mean = 0.0,", True),
    ],
)
def test_random_outputs_are_distributed_alike(one: str, other: str, equal: bool) -> None:
    signature = "(float[200, 200] x) => (float[200, 200] y)"
    a, b = (model(signature, f"r = {text} shape = [200, 200]> () y = Add (x, r)") for text in (one, other))
    assert compared(a, b).passed == equal
