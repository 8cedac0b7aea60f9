"""Write large weights to files of their own, once for all models of a folder.

Candidates of a search share most of their weights.  A runtime maps such files into its memory, whereas a
message with all weights is copied about six times on its way there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from onnx import ModelProto, TensorProto

from tensaurus.graph.ir.tensor_data import Array, TensorData, size_in_bytes
from tensaurus.graph.onnx.onnx_frame import graphs_in, light_copy
from tensaurus.ops.element_type import dtype_name
from tensaurus.system.errors import InvalidModel

MIN_FILE_BYTES = 1 << 20  # smaller tensors stay in the model


class WeightFiles:
    """The weight files of one folder, named by their content; models that read them must be in the folder.

    Without `writes`, only weights that the folder already has become external data.
    """

    def __init__(self, folder: Path, writes: bool = True):
        self._folder, self._writes = folder, writes

    def store(self, data: TensorData, name: str, stem: str | None = None) -> TensorProto | None:
        """Write a tensor to a file and return it as external data; None where it is small, or no raw data.

        The file is named `stem`, or by the tensor's content.
        """
        if data.dtype == "string" or size_in_bytes(data.dtype, data.shape) < MIN_FILE_BYTES:
            return None
        file = self._folder / f"{stem or data.digest.hex()}.weights"
        if not file.exists():
            if not self._writes or (raw := data.raw) is None:
                return None
            partial = file.with_suffix(f".{os.getpid()}")  # so that an interrupt leaves no incomplete file
            partial.write_bytes(raw)
            partial.replace(file)
        tensor = data.proto_without_elements(name)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=file.name)
        return tensor

    def store_initializers(
        self, model: ModelProto, changed: Callable[[TensorProto], Array | None] = lambda tensor: None
    ) -> ModelProto:
        """Return the model with its large initializers as external data; those of bodies stay inside.

        `changed` returns new elements for an initializer, None to keep its elements.
        """
        # the copy lacks the elements of large tensors, in attributes and bodies too, and calls these tensors
        # external: an initializer gets the name of its file, the others get their elements back
        stored = light_copy(model)
        for tensor, light in zip(model.graph.initializer, stored.graph.initializer, strict=True):
            if light.data_location != TensorProto.EXTERNAL or tensor.data_location == TensorProto.EXTERNAL:
                continue
            large = size_in_bytes(dtype_name(tensor.data_type), tuple(tensor.dims)) >= MIN_FILE_BYTES
            array = changed(tensor) if large else None
            if array is None:
                external = self.store(TensorData(proto=tensor), tensor.name)
            else:  # no other model has these elements: a unique name is as good as a hash of them
                external = self.store(TensorData(array), tensor.name, uuid4().hex)
            if external is not None:
                light.external_data.extend(external.external_data)
            else:
                light.CopyFrom(tensor)
        for node, other in zip(model.graph.node, stored.graph.node, strict=True):
            if any(a.HasField("t") or a.HasField("g") or a.graphs for a in node.attribute):
                other.CopyFrom(node)
        return stored


def read_elements(tensor: TensorProto, folder: Path | None = None) -> TensorData:
    """Return the elements of a tensor, which the model or a file of `WeightFiles` in the folder holds.

    Raises InvalidModel for a malformed tensor.
    """
    try:
        if folder is None or tensor.data_location != TensorProto.EXTERNAL:
            return TensorData(proto=tensor)
        (location,) = (entry.value for entry in tensor.external_data if entry.key == "location")
        return TensorData.from_file(folder / location, dtype_name(tensor.data_type), tuple(tensor.dims))
    except Exception as error:  # whatever numpy or protobuf find wrong with it
        raise InvalidModel(f"the tensor {tensor.name} is malformed ({error})") from error


def is_outside(model: ModelProto) -> bool:
    """Return whether some initializers of the model, or of a body in it, are external data."""
    tensors = (tensor for graph in graphs_in(model.graph) for tensor in graph.initializer)
    return any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors)
