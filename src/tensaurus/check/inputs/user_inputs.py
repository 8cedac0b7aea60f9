"""Checks the inputs, and the ranges of integer inputs, that the caller gives against the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from tensaurus.check.inputs.model_interface import inputs_of, required_inputs
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.onnx.onnx_frame import stated_sizes
from tensaurus.ops.element_type import dtype_name
from tensaurus.runtimes.backends import Array
from tensaurus.system.errors import TensaurusError

__all__ = ["Inputs", "load_user_inputs", "require_ranges"]

Inputs: TypeAlias = Mapping[str, Any] | str | Path  # arrays by the inputs' names, or an .npz file of them


def load_user_inputs(
    inputs: Inputs | None, model: ModelProto, shapes: Mapping[str, Sequence[int]]
) -> dict[str, Array]:
    """Return the caller's arrays by the names of inputs, {} where none are given.

    `shapes` are the sizes that options fix.  Raises TensaurusError, which names the file, for a file that
    cannot be read, for names that are not inputs, for missing inputs, and for a wrong type or shape.
    """
    if inputs is None:
        return {}
    file = inputs if isinstance(inputs, str | Path) else None
    if isinstance(inputs, str | Path):
        arrays = _read_npz(Path(inputs))
    else:
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
    values = {value.name: value for value in inputs_of(model)}
    known = ", ".join(values) or "none"
    if unknown := [name for name in arrays if name not in values]:
        raise TensaurusError(
            f"the model has no input {unknown[0]}", file=file, remedy=f"Its inputs are: {known}"
        )
    if missing := [value.name for value in required_inputs(model) if value.name not in arrays]:
        raise TensaurusError(
            f"input {missing[0]} is missing", file=file, remedy=f"Give an array for each of: {known}"
        )
    try:
        return {name: _check_array(values[name], array, shapes.get(name)) for name, array in arrays.items()}
    except TensaurusError as error:
        error.file = file
        raise


def _read_npz(path: Path) -> dict[str, Array]:
    remedy = "Write it with numpy.savez(file, name=array, ...)."
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return dict(loaded)
    except Exception as error:  # of a file, of a zip archive, or of an array in it
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TensaurusError(f"cannot be read as inputs: {reason}", file=path, remedy=remedy) from error
    raise TensaurusError("holds one array without a name, not named inputs", file=path, remedy=remedy)


def _check_array(value: ValueInfoProto, array: Array, fixed: Sequence[int] | None) -> Array:
    """Return the array as runtimes take it.  Raises TensaurusError where the model does not take it."""
    name, kind = value.name, value.type
    if not kind.HasField("tensor_type"):
        reason = f"input {name} is not a tensor, so no array can be given for it"
        raise TensaurusError(reason, remedy="Export the model with tensors as its only inputs.")
    code = kind.tensor_type.elem_type
    if code == TensorProto.STRING:
        if array.dtype.kind not in "OSU":
            reason = f"input {name} is {array.dtype}, the model expects strings"
            raise TensaurusError(reason, remedy="Convert it: array.astype(str)")
        array = array.astype(object)
    elif array.dtype != (wanted := numpy_dtype(dtype_name(code))):
        raise TensaurusError(
            f"input {name} is {array.dtype}, the model expects {wanted}",
            remedy=f'Convert it: array.astype("{wanted}")',
        )
    sizes = list(fixed) if fixed is not None else stated_sizes(kind)
    if sizes is not None and (
        len(sizes) != array.ndim
        or any(size not in (None, own) for size, own in zip(sizes, array.shape, strict=True))
    ):
        words = ", ".join("?" if size is None else str(size) for size in sizes)
        reason = f"input {name} has shape {list(array.shape)}, the model expects [{words}]"
        raise TensaurusError(reason, remedy="Give an array of that shape.")
    return array


def require_ranges(model: ModelProto, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise TensaurusError for a range of what is no integer input, or beyond what its type holds."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in required_inputs(model)}
    for name, (low, high) in ranges.items():
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            reason = f"--range names {name}, which is no input"
            raise TensaurusError(reason, remedy=f"The model's inputs are: {known}")
        kind = TensorProto.DataType.Name(kinds[name]).lower()
        sizes = re.fullmatch(r"(u?)int(\d+)", kind)
        if sizes is None:
            reason = f"--range names input {name}, which is {kind}, not an integer type"
            raise TensaurusError(reason, remedy="Give values of other inputs with --inputs.")
        bits = min(63, int(sizes[2]) - (not sizes[1]))
        least, most = 0 if sizes[1] else -(2**bits), 2**bits - 1
        if low < least or high > most:
            reason = f"--range {name}={low},{high} exceeds the type {kind} of the input"
            raise TensaurusError(reason, remedy=f"Its values go from {least} to {most}.")
