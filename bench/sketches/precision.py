"""Models in which rounding is a meaning: conversions there and back, constants and scales that cancel.

Other operands between them meet what was rounded, or what will be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sketches.elements import Random
from sketches.operators import extend
from sketches.sketch import Sketch
from tensaurus.ops import TensorType, registry

NARROW = ("float16", "bfloat16", "float64")
LARGE = (12582912.0, 8388608.0, 1572864.0, 1e10, 4097.0, 3.0)  # beside which a float32 has few digits, or all
SCALES = (1e30, 1e-30, 3.0, 0.1)
BETWEEN = ("Relu", "Neg", "Abs", "Identity", "Sigmoid", "Tanh", "Floor", "Round")


def of_precision(opset: int, rng: Random) -> Sketch:
    """A chain of such steps, with others between and behind."""
    sketch = Sketch(opset, rng, origin="precision")
    shape = tuple(int(n) for n in rng.integers(1, 6, int(rng.integers(0, 4))))
    value = sketch.leaf(TensorType("float32", shape))
    for _ in range(int(rng.integers(1, 4))):
        step = STEPS[int(rng.integers(len(STEPS)))]
        value = step(sketch, value)
        if rng.random() < 0.3:
            name = BETWEEN[int(rng.integers(len(BETWEEN)))]
            if name != "Round" or opset >= 11:
                (value,) = sketch.apply(registry[name], [value], {})
    if rng.random() < 0.3:
        extend(sketch, 1)
    return sketch


def _converted(sketch: Sketch, value: str) -> str:
    """Through another type and back."""
    cast = registry["Cast"]
    narrow = NARROW[int(sketch.rng.integers(len(NARROW)))]
    if narrow == "bfloat16" and sketch.opset < 13:
        narrow = "float16"
    (value,) = sketch.apply(cast, [value], {"to": narrow})
    (value,) = sketch.apply(cast, [value], {"to": "float32"})
    return value


def _moved(sketch: Sketch, value: str) -> str:
    """A constant more, and less."""
    large = LARGE[int(sketch.rng.integers(len(LARGE)))]
    (near,) = sketch.apply(registry["Add"], [value, _number(sketch, large)], {})
    if sketch.rng.random() < 0.3:  # what it lost
        (back,) = sketch.apply(registry["Sub"], [near, _number(sketch, large)], {})
        (value,) = sketch.apply(registry["Sub"], [value, back], {})
    elif sketch.rng.random() < 0.5:
        (value,) = sketch.apply(registry["Sub"], [near, _number(sketch, large)], {})
    else:
        (value,) = sketch.apply(registry["Add"], [near, _number(sketch, -large)], {})
    return value


def _joined(sketch: Sketch, value: str) -> str:
    """With another input, which nothing may round or scale in its place."""
    other = sketch.leaf(sketch.types[value])
    name = ("Add", "Sub", "Mul")[int(sketch.rng.integers(3))]
    (value,) = sketch.apply(registry[name], [value, other], {})
    return value


def _scaled(sketch: Sketch, value: str) -> str:
    """A scale, and its inverse."""
    scale = SCALES[int(sketch.rng.integers(len(SCALES)))]
    (near,) = sketch.apply(registry["Mul"], [value, _number(sketch, scale)], {})
    if sketch.rng.random() < 0.5:
        (value,) = sketch.apply(registry["Div"], [near, _number(sketch, scale)], {})
    else:
        (value,) = sketch.apply(registry["Mul"], [near, _number(sketch, 1 / scale)], {})
    return value


def _number(sketch: Sketch, value: float) -> str:
    return sketch.leaf(TensorType("float32", ()), np.array(value, np.float32), True)


STEPS: tuple[Callable[[Sketch, str], str], ...] = (_converted, _moved, _scaled, _joined)
