"""Models one rounding away: how far may a result move when nothing but rounding changes?

Every weight and input that is not a short number (such as 0, 0.5 or 6, which nothing ever rounded) moves to
the next floating-point number up or down, or stays.  A rewrite that rounds each weight once, or adds in
another order, cannot be told from such a copy.  A threshold that both models hold was never rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from tensaurus.backends import Array

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})
# low bits of the mantissa that are zero in a short number
SHORT = {2: (np.uint16, 6), 4: (np.uint32, 12), 8: (np.uint64, 28)}


def perturbed(array: Array, rng: np.random.Generator) -> Array:
    """The array with its elements moved by at most one unit in the last place."""
    if array.dtype.kind != "f" or not array.size:
        return array
    words, low = SHORT[array.dtype.itemsize]
    bits = np.asarray(array, order="C").view(words)  # ascontiguousarray would give a scalar an axis
    short = (bits & words((1 << low) - 1)) == 0
    way = rng.integers(-1, 2, array.shape)
    target = np.where(way > 0, np.inf, -np.inf).astype(array.dtype)
    with np.errstate(all="ignore"):
        next_one = np.nextafter(array, target)
    keep = short | (way == 0) | ~np.isfinite(array) | ~np.isfinite(next_one)
    return np.asarray(np.where(keep, array, next_one), array.dtype)


def perturbed_model(model: ModelProto, seed: int, kept: Collection[float] = frozenset()) -> ModelProto:
    """A copy of the model, its float weights moved, but for single numbers that are `kept`."""
    rng = np.random.default_rng([seed, 1])
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in _weights(copy):
        array = numpy_helper.to_array(tensor)
        if array.size == 1 and float(array.item()) in kept:
            continue
        changed = perturbed(array, rng)
        if not np.array_equal(changed, array, equal_nan=True):
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return copy


def perturbed_feed(arrays: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The inputs moved."""
    rng = np.random.default_rng([seed, 2])
    return {name: perturbed(array, rng) for name, array in arrays.items()}


def _weights(model: ModelProto) -> Iterator[TensorProto]:
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        yield from (t for t in graph.initializer if t.data_type in FLOATS)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t") and attribute.t.data_type in FLOATS:
                    yield attribute.t
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                graphs.extend(attribute.graphs)
