"""Large tensors outside of the models that read them: a file each, once for all models of a folder.

Candidates of a search differ in few of their weights.  A runtime maps such files into its memory; a message
with all weights in it is copied half a dozen times on its way there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto, TensorProto

from tensaurus.graph.ir.tensor_data import Array, TensorData, size_in_bytes
from tensaurus.graph.onnx.onnx_frame import light_copy
from tensaurus.ops.element_type import dtype_name

__all__ = ["WeightFiles", "is_outside"]

MIN_FILE_BYTES = 1 << 20  # bytes of a tensor that stands outside


class WeightFiles:
    """The files of one folder, each named by what it holds; models that read them must lie there, too.

    They stay as long as the folder.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def outside(self, data: TensorData, name: str) -> TensorProto | None:
        """The tensor without its elements, in a file now; None where it is small, or not raw data."""
        if data.dtype == "string" or size_in_bytes(data.dtype, data.shape) < MIN_FILE_BYTES:
            return None
        if (raw := data.raw) is None:
            return None
        file = self._folder / f"{data.digest.hex()}.weights"
        if not file.exists():
            beside = file.with_suffix(f".{os.getpid()}")
            beside.write_bytes(raw)  # what an interrupt leaves has another name
            beside.replace(file)
        tensor = data.proto_without_elements(name)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=file.name)
        return tensor

    def light(
        self, model: ModelProto, changed: Callable[[TensorProto], Array | None] = lambda tensor: None
    ) -> ModelProto:
        """The model with its large initializers outside, with the elements that these are `changed` to; those
        of bodies stay."""
        stored = light_copy(model)
        for tensor, light in zip(model.graph.initializer, stored.graph.initializer, strict=True):
            if light.data_location != TensorProto.EXTERNAL or tensor.data_location == TensorProto.EXTERNAL:
                continue
            large = size_in_bytes(dtype_name(tensor.data_type), tuple(tensor.dims)) >= MIN_FILE_BYTES
            array = changed(tensor) if large else None
            made = self.outside(TensorData(proto=tensor) if array is None else TensorData(array), tensor.name)
            if made is not None:
                light.external_data.extend(made.external_data)
            else:
                light.CopyFrom(tensor)
        for node, other in zip(model.graph.node, stored.graph.node, strict=True):
            if any(a.HasField("t") or a.HasField("g") or a.graphs for a in node.attribute):
                other.CopyFrom(node)
        return stored


def is_outside(model: ModelProto) -> bool:
    """Whether some of its initializers are."""
    return any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer)
