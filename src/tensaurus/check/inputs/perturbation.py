"""Moves weights and inputs by one rounding, to measure how far results move when only rounding changes.

Every weight and input moves to the next floating-point number up or down, or stays: that makes a *perturbed
copy*.  A rewrite that rounds each weight once, or adds in another order, cannot be told from such a copy.
Three kinds of numbers stay:

- short numbers such as 0, 0.5 or 6, which nothing has ever rounded,
- single numbers that both models hold, such as thresholds, which no rewrite has rounded,
- single numbers beyond half of their type's digits: 12582784 was chosen because adding it rounds to integers,
  and with the next number the model is another function.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from tensaurus.graph.onnx.weight_files import WeightFiles
from tensaurus.runtimes.backends import Array

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})
# By bytes of a float: the integer type for its bits, how many low bits of a short number are 0, the exponent.
FLOAT_BITS = {2: (np.int16, 6, 0x7C00), 4: (np.int32, 12, 0x7F800000), 8: (np.int64, 28, 0x7FF << 52)}
# Numbers up to 2**9 are not large; this decides for float16, half of whose digits are only 5.
MIN_LARGE_EXPONENT = 9
CACHED_ELEMENTS = 1 << 18  # elements that are moved at once, few enough to stay in the cache


def perturb_array(array: Array, rng: np.random.Generator) -> Array:
    """Return the array with its elements moved by at most one unit in the last place.

    The bits of a float, read as an integer, plus or minus 1 are the bits of its neighbours.  Returns `array`
    itself where no element moves.
    """
    if array.dtype.kind != "f" or not array.size:
        return array
    words, low, exponent = FLOAT_BITS[array.dtype.itemsize]
    own = np.asarray(array, order="C")
    bits = own.reshape(-1).view(words)
    moved = np.empty_like(bits)
    for start in range(0, bits.size, CACHED_ELEMENTS):
        part = bits[start : start + CACHED_ELEMENTS]
        next_ones = part + rng.integers(-1, 2, part.size, np.int8)
        fits = (next_ones & words(exponent)) != exponent  # infinities and NaN stay, too
        keep = (part & words((1 << low) - 1)) == 0
        keep |= (part & words(exponent)) == exponent
        keep |= ~fits
        np.copyto(next_ones, part, where=keep)
        moved[start : start + CACHED_ELEMENTS] = next_ones
    return array if np.array_equal(moved, bits) else moved.view(array.dtype).reshape(array.shape)


def perturb_model(
    model: ModelProto, seed: int, kept: Collection[float] = frozenset(), files: WeightFiles | None = None
) -> ModelProto:
    """Return a copy of the model with moved float weights; single numbers among `kept` stay.

    Large weights of the copy are written to `files`, if given.
    """
    rng = np.random.default_rng([seed, 1])

    def moved(tensor: TensorProto) -> Array | None:
        """Return the moved elements; None where none has moved."""
        if tensor.data_type not in FLOATS:
            return None
        array = numpy_helper.to_array(tensor)
        if (array.size == 1 and float(array.item()) in kept) or _is_one_large_number(array):
            return None
        changed = perturb_array(array, rng)
        return None if changed is array else changed

    if files is None:
        copy = ModelProto()
        copy.CopyFrom(model)
    else:
        copy = files.store_initializers(model, moved)
    for tensor in _weights(copy):
        if tensor.data_location == TensorProto.EXTERNAL or (changed := moved(tensor)) is None:
            continue
        if tensor.HasField("raw_data") and sys.byteorder == "little":
            tensor.raw_data = changed.tobytes()
        else:
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return copy


def _is_one_large_number(array: Array) -> bool:
    """Return whether all elements are one number beyond half of its type's digits, such as 12582912."""
    if not array.size:
        return False
    first, digits = array.flat[0], np.finfo(array.dtype).nmant + 1
    return bool(abs(first) > 2.0 ** max(digits // 2, MIN_LARGE_EXPONENT) and (array == first).all())


def perturb_feed(arrays: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Return the inputs, moved."""
    rng = np.random.default_rng([seed, 2])
    return {name: perturb_array(array, rng) for name, array in arrays.items()}


def _weights(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all float tensors of the model, those in bodies too."""
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
