"""Models that compare their own sizes with constants, of one digit to four."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from sketches.elements import Random
from sketches.operators import extend
from sketches.sketch import BEYOND, Sketch
from tensaurus.ops import TensorType, registry

TYPES = ("float32", "float32", "int32", "int64")
COMPARING = ("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")
COMPARED = 12  # the opset from which on all of these are declared; before it, the first three
ALIKE = ("Neg", "Abs", "Identity", "Sign")  # what the branches do
OFTEN = 0.75  # of these models have sizes with names


def of_branches(opset: int, rng: Random) -> Sketch:
    """What one branch or another makes of an input, by whether one of its sizes reaches a constant."""
    sketch = Sketch(opset, rng, origin="branches", named=OFTEN)
    threshold = int(np.exp2(rng.uniform(1, np.log2(BEYOND[1]))))
    shape = [int(n) for n in rng.integers(1, 4, int(rng.integers(1, 4)))]
    axis = int(rng.integers(len(shape)))
    shape[axis] = max(1, threshold + int(rng.integers(-1, 2)))
    sketch.near.append(threshold)
    value = sketch.leaf(TensorType(sketch.one(TYPES), tuple(shape)))
    size = _size(sketch, value, axis)
    step = STEPS[int(rng.integers(len(STEPS)))]
    value = step(sketch, value, size, threshold, axis)
    if rng.random() < 0.3:
        extend(sketch, 1)
    return sketch


def _size(sketch: Sketch, value: str, axis: int) -> str:
    """The size along the axis, computed by the model."""
    (shape,) = sketch.apply(registry["Shape"], [value], {})
    return sketch.apply(registry["Gather"], [shape, _number(sketch, axis)], {"axis": 0})[0]


def _asked(sketch: Sketch, size: str, threshold: int) -> str:
    """Whether the size reaches the threshold; now and then a multiple of it, that of it."""
    if sketch.rng.random() < 0.3:
        factor = int(sketch.rng.integers(2, 6))
        (size,) = sketch.apply(registry["Mul"], [size, _number(sketch, factor)], {})
        threshold = factor * threshold + int(sketch.rng.integers(-1, 2))
    name = sketch.one(COMPARING if sketch.opset >= COMPARED else COMPARING[:3])
    given = [size, _number(sketch, threshold)]
    if sketch.rng.random() < 0.3:
        given.reverse()
    return sketch.apply(registry[name], given, {})[0]


def _chosen(sketch: Sketch, value: str, size: str, threshold: int, axis: int) -> str:
    asked = _asked(sketch, size, threshold)
    found = [sketch.apply(registry[sketch.one(ALIKE)], [value], {})[0] for _ in range(2)]
    return sketch.apply(registry["Where"], [asked, *found], {})[0]


def _scaled(sketch: Sketch, value: str, size: str, threshold: int, axis: int) -> str:
    """Times 0 or 1."""
    asked = _asked(sketch, size, threshold)
    (mask,) = sketch.apply(registry["Cast"], [asked], {"to": sketch.types[value].dtype})
    return sketch.apply(registry["Mul"], [value, mask], {})[0]


def _divided(sketch: Sketch, value: str, size: str, threshold: int, axis: int) -> str:
    """By the size, but no less or no more than the threshold."""
    limited = registry[sketch.one(("Min", "Max"))]
    (size,) = sketch.apply(limited, [size, _number(sketch, threshold)], {})
    (size,) = sketch.apply(registry["Cast"], [size], {"to": sketch.types[value].dtype})
    return sketch.apply(registry["Div"], [value, size], {})[0]


def _sliced(sketch: Sketch, value: str, size: str, threshold: int, axis: int) -> str:
    """Up to the threshold, or from there."""
    ends = (0, threshold) if sketch.rng.random() < 0.6 else (threshold - 1, 2**31)
    given = {"starts": ends[:1], "ends": ends[1:], "axes": (axis,), "steps": None}
    return sketch.apply(registry["Slice"], [value], given)[0]


def _branched(sketch: Sketch, value: str, size: str, threshold: int, axis: int) -> str:
    """By an If, whose branches read the value from outside."""
    asked, kind = _asked(sketch, size, threshold), sketch.types[value]
    place = len(sketch.nodes)
    bodies = {}
    for name in ("then_branch", "else_branch"):
        made = f"{name}_{place}"
        node = helper.make_node(sketch.one(ALIKE), [value], [made])
        bodies[name] = helper.make_graph([node], made, [], [sketch.info(made, None, kind)])
    found = f"v{place}_0"
    sketch.nodes.append(helper.make_node("If", [asked], [found], f"n{place}", **bodies))
    sketch.types[found] = kind
    return found


def _number(sketch: Sketch, value: int) -> str:
    return sketch.leaf(TensorType("int64", ()), np.array(value, np.int64), True)


STEPS: tuple[Callable[[Sketch, str, str, int, int], str], ...] = (
    *(_chosen, _scaled, _divided, _sliced, _branched),
)
