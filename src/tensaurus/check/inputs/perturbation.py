"""Models one rounding away: how far may a result move when nothing but rounding changes?

Every weight and input that is not a short number (such as 0, 0.5 or 6, which nothing ever rounded) moves to
the next floating-point number up or down, or stays.  A rewrite that rounds each weight once, or adds in
another order, cannot be told from such a copy.  A threshold that both models hold was never rounded.  Nor
does one number move that is beyond half of its type's digits: 12582784 was chosen for what it rounds to
integers, and with the next number it is another function.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from tensaurus.graph.onnx.weight_files import Weights
from tensaurus.runtimes.backends import Array

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})
# bits of a number, as an integer: its type, the low ones that are zero in a short number, its exponent's
SHORT = {2: (np.int16, 6, 0x7C00), 4: (np.int32, 12, 0x7F800000), 8: (np.int64, 28, 0x7FF << 52)}
LARGE = 9  # the exponent from which on single numbers are large, at least: in float16
AT_ONCE = 1 << 18  # elements that are moved while they are in the cache


def perturbed(array: Array, rng: np.random.Generator) -> Array:
    """The array with its elements moved by at most one unit in the last place; itself where none can be.

    The bits of a number's magnitude are an integer, whose neighbours are those of the next numbers.
    """
    if array.dtype.kind != "f" or not array.size:
        return array
    words, low, exponent = SHORT[array.dtype.itemsize]
    own = np.asarray(array, order="C")
    bits = own.reshape(-1).view(words)
    moved = np.empty_like(bits)
    for start in range(0, bits.size, AT_ONCE):
        part = bits[start : start + AT_ONCE]
        next_ones = part + rng.integers(-1, 2, part.size, np.int8)
        fits = (next_ones & words(exponent)) != exponent  # infinities and what is no number stay, too
        keep = (part & words((1 << low) - 1)) == 0
        keep |= (part & words(exponent)) == exponent
        keep |= ~fits
        np.copyto(next_ones, part, where=keep)
        moved[start : start + AT_ONCE] = next_ones
    return array if np.array_equal(moved, bits) else moved.view(array.dtype).reshape(array.shape)


def perturbed_model(
    model: ModelProto, seed: int, kept: Collection[float] = frozenset(), files: Weights | None = None
) -> ModelProto:
    """A copy of the model, its float weights moved, but for single numbers that are `kept`.

    Large weights are in `files`, where these are given.
    """
    rng = np.random.default_rng([seed, 1])

    def moved(tensor: TensorProto) -> Array | None:
        """Its elements, where some have moved."""
        if tensor.data_type not in FLOATS:
            return None
        array = numpy_helper.to_array(tensor)
        if (array.size == 1 and float(array.item()) in kept) or _is_one_large_number(array):
            return None
        changed = perturbed(array, rng)
        return None if changed is array else changed

    if files is None:
        copy = ModelProto()
        copy.CopyFrom(model)
    else:
        copy = files.light(model, moved)
    for tensor in _weights(copy):
        if tensor.data_location == TensorProto.EXTERNAL or (changed := moved(tensor)) is None:
            continue
        if tensor.HasField("raw_data") and sys.byteorder == "little":
            tensor.raw_data = changed.tobytes()
        else:
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return copy


def _is_one_large_number(array: Array) -> bool:
    """Whether all elements are one number beyond half of its type's digits: 12582912, or a row of it."""
    if not array.size:
        return False
    first, digits = array.flat[0], np.finfo(array.dtype).nmant + 1
    return bool(abs(first) > 2.0 ** max(digits // 2, LARGE) and (array == first).all())


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
