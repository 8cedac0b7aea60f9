"""Models in which integers meet constants: inputs lie around those, between them, and where types wrap."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

import numpy as np

from sketches.elements import Array, Random
from sketches.operators import extend
from sketches.sketch import Sketch, Undrawn
from tensaurus.expr.analysis.breaking_values import draw_integers, draw_integers_near
from tensaurus.expr.ir.integer_types import integer_limits, is_integer
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.ops import TensorType, registry
from tensaurus.ops.declare import NUMBERS

TYPES = tuple(sorted(filter(is_integer, NUMBERS)))
DIGITS = 1.0, 5.0  # constants lie between these powers of ten, as far as their type holds them
ARITHMETIC = ("Add", "Sub", "Mul", "Max", "Min")  # of a constant on either side
DIVIDING = ("Div", "Mod")  # by a constant, which is not 0
COMPARING = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
ALONE = ("Neg", "Abs", "Sign", "Identity")


def of_integers(opset: int, rng: Random) -> Sketch:
    """A chain of operators that read an integer input, and constants of two to five digits."""
    sketch = Sketch(opset, rng, origin="integers")
    shape = tuple(int(n) for n in rng.integers(1, 8, int(rng.integers(1, 4))))
    start = value = sketch.leaf(TensorType(str(rng.choice(TYPES)), shape))
    wanted = int(rng.integers(1, 5))
    for _ in range(4 * wanted):
        step = STEPS[int(rng.integers(len(STEPS)))]
        with suppress(Undrawn):
            value = step(sketch, value)
        if len(sketch.nodes) >= wanted:
            break
    else:
        raise Undrawn("this opset has few operators of this type")
    if rng.random() < 0.2:
        extend(sketch, 1)
    sketch.inputs[start] = _drawn_around(sketch, sketch.types[start].dtype, shape)
    return sketch


def _drawn_around(sketch: Sketch, dtype: str, shape: tuple[int, ...]) -> Array:
    """Elements around what meets a constant, among others from all of the type."""
    constants = (v for v in sketch.constants.values() if v.dtype.kind in "iu")
    near = set(_meeting({int(n) for value in constants for n in value.reshape(-1)}))
    around = draw_integers_near(dtype, shape, sketch.rng, near)
    anywhere = draw_integers(dtype, shape, sketch.rng, near)
    found = np.where(sketch.rng.random(shape) < 0.6, around, anywhere)
    return np.asarray(found, numpy_dtype(dtype))


def _meeting(constants: Collection[int]) -> Iterator[int]:
    """The constants, and what one operator with one constant makes another of."""
    for c in constants:
        yield from (c, -c)
        for other in constants:
            yield from (other - c, other + c, c - other, other * c, *((other // c,) if c else ()))


def _computed(sketch: Sketch, value: str) -> str:
    """Arithmetic with a constant."""
    name = sketch.one((*ARITHMETIC, *DIVIDING))
    given = [value, _constant(sketch, value)]
    if name in ARITHMETIC and sketch.rng.random() < 0.3:
        given.reverse()
    attributes = {"fmod": 1} if name == "Mod" and sketch.rng.random() < 0.3 else {}
    return sketch.apply(registry[name], given, attributes)[0]


def _clipped(sketch: Sketch, value: str) -> str:
    """Kept between two constants, or on one side of one."""
    low, high = sorted((_number(sketch, value), _number(sketch, value)))
    ends = [_scalar(sketch, value, n) if sketch.rng.random() < 0.8 else None for n in (low, high)]
    if ends == [None, None]:
        raise Undrawn("no bound")
    return sketch.apply(registry["Clip"], [value, *ends], {})[0]


def _chosen(sketch: Sketch, value: str) -> str:
    """One of two values, by a comparison with a constant."""
    asked = _compared(sketch, value)
    other = _constant(sketch, value) if sketch.rng.random() < 0.5 else _computed(sketch, value)
    given = [value, other]
    if sketch.rng.random() < 0.5:
        given.reverse()
    return sketch.apply(registry["Where"], [asked, *given], {})[0]


def _masked(sketch: Sketch, value: str) -> str:
    """Times 0 or 1, by a comparison with a constant."""
    asked = _compared(sketch, value)
    (mask,) = sketch.apply(registry["Cast"], [asked], {"to": sketch.types[value].dtype})
    return sketch.apply(registry["Mul"], [value, mask], {})[0]


def _converted(sketch: Sketch, value: str) -> str:
    """As another type of integers, and now and then back."""
    own, other = sketch.types[value].dtype, str(sketch.rng.choice(TYPES))
    (value,) = sketch.apply(registry["Cast"], [value], {"to": other})
    if sketch.rng.random() < 0.4:
        (value,) = sketch.apply(registry["Cast"], [value], {"to": own})
    return value


def _alone(sketch: Sketch, value: str) -> str:
    return sketch.apply(registry[sketch.one(ALONE)], [value], {})[0]


def _compared(sketch: Sketch, value: str) -> str:
    given = [value, _constant(sketch, value)]
    if sketch.rng.random() < 0.3:
        given.reverse()
    return sketch.apply(registry[sketch.one(COMPARING)], given, {})[0]


def _constant(sketch: Sketch, value: str) -> str:
    """A constant number of the value's type, or one for each place of its last dimension."""
    shape = sketch.types[value].shape[-1:]
    if not shape or sketch.rng.random() < 0.7:
        return _scalar(sketch, value, _number(sketch, value))
    numbers = [_number(sketch, value) for _ in range(int(shape[0]))]  # type: ignore[arg-type]
    dtype = sketch.types[value].dtype
    return sketch.leaf(TensorType(dtype, shape), np.array(numbers, numpy_dtype(dtype)), True)


def _scalar(sketch: Sketch, value: str, number: int) -> str:
    dtype = sketch.types[value].dtype
    return sketch.leaf(TensorType(dtype, ()), np.array(number, numpy_dtype(dtype)), True)


def _number(sketch: Sketch, value: str) -> int:
    """Of two to five digits and, where the type has them, of both signs."""
    if not is_integer(dtype := sketch.types[value].dtype):
        raise Undrawn("no integers")
    low, high = integer_limits(dtype)
    size = min(int(10 ** sketch.rng.uniform(*DIGITS)), high)
    return -size if low < 0 and sketch.rng.random() < 0.3 else size


STEPS: tuple[Callable[[Sketch, str], str], ...] = (
    *(_computed, _computed, _chosen, _masked, _clipped, _converted, _alone),
)
