"""A build: an ONNX model with the libraries of its custom operators, as backends compile and time it.

Processes that only run builds need neither onnx nor the operators' declarations, so that methods import these
modules where they need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import file_hash

if TYPE_CHECKING:
    from onnx import ModelProto

    from tensaurus.graph.ir.node import Node


@dataclass(frozen=True)
class TensorMap:
    """Which node each tensor of an exported model stands for; inputs and constants have no entry.

    Exporting folds constants and expands operators that ONNX lacks to several nodes, so that a program and
    its model have different nodes.

    written   by tensor name: the node that computes the tensor, after folding and expansion
    computed  by tensor name: the nodes of the program as it was, which the tensor helps to compute; for a
              tensor inside an expansion, the node that was expanded
    """

    written: Mapping[str, Node] = field(default_factory=dict)
    computed: Mapping[str, frozenset[Node]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Build:
    """A model as runtimes load it; two builds of the same content are equal.

    model             an ONNX model's bytes, or the path of its file
    libraries         shared objects with custom operators; the files must stay where they are
    tensors           the node of each tensor, if the model was exported from a program; not sent to processes
    is_content_named  whether its external data are files named by their content (`graph/onnx/weight_files`):
                      then the model, which contains these names, tells their content, and `digest` reads
                      none of them
    """

    model: bytes | Path
    libraries: tuple[Path, ...] = ()
    tensors: TensorMap = TensorMap()
    is_content_named: bool = False

    @classmethod
    def from_model(
        cls,
        model: ModelProto,
        folder: Path,
        libraries: Sequence[Path] = (),
        tensors: TensorMap = TensorMap(),
        shares_weights: bool = True,
    ) -> Build:
        """Return a build of the model in memory, or in a file of the folder where it is too large.

        With `shares_weights`, large initializers are files of their own, shared by all builds of the folder.
        """
        from tensaurus.graph.onnx.model_file import TWO_GIGABYTES, save_model, weight_bytes
        from tensaurus.graph.onnx.weight_files import WeightFiles, is_outside

        light = WeightFiles(folder).store_initializers(model) if shares_weights else model
        path = folder / f"model_{len(list(folder.iterdir()))}.onnx"
        if weight_bytes(light) >= TWO_GIGABYTES:  # too large for one message, even without those files
            save_model(model, path)
            return cls(path, tuple(libraries), tensors)
        written = bytes(light.SerializeToString(deterministic=True))
        if not is_outside(light):
            return cls(written, tuple(libraries), tensors)
        path.write_bytes(written)
        return cls(path, tuple(libraries), tensors, is_content_named=True)

    @classmethod
    def from_file(cls, path: str | Path) -> Build:
        """Return the build of a model's file and the kernel libraries that it names.

        Raises TensaurusError where a library is missing or was replaced.
        """
        from tensaurus.graph.onnx.kernel_libraries import find_libraries

        return cls(Path(path), find_libraries(path))

    def proto(self, *, weights: bool = True) -> ModelProto:
        """Return the model as a message; without `weights`, external data of a file is not loaded.

        Raises the exceptions of onnx and of the file system.
        """
        import onnx

        if isinstance(self.model, bytes):
            return onnx.load_from_string(self.model)
        model = onnx.load(self.model, load_external_data=weights)
        if weights:
            from tensaurus.graph.onnx.onnx_frame import tensors_of

            for tensor in tensors_of(model):  # loading sets the field, which the model may not have had
                if tensor.HasField("data_location") and tensor.data_location == onnx.TensorProto.DEFAULT:
                    tensor.ClearField("data_location")
        return model

    @property
    def size(self) -> int:
        """Return the bytes of the model, without external data."""
        return len(self.model) if isinstance(self.model, bytes) else self.model.stat().st_size

    @cached_property
    def total_bytes(self) -> int:
        """Return the bytes of the model with its external data, of which unreadable files count as 0."""
        external = 0
        if isinstance(self.model, Path):
            with suppress(OSError, ValueError):  # protobuf's DecodeError is one
                external = sum(file.stat().st_size for file in self._external_files)
        return self.size + external

    @cached_property
    def constant_bytes(self) -> int:
        """Return the bytes of all constants, wherever they are stored.  Raises as `proto` does."""
        from tensaurus.graph.ir.tensor_data import size_in_bytes
        from tensaurus.graph.onnx.onnx_frame import tensors_of
        from tensaurus.ops.element_type import dtype_name

        tensors = [tensor for tensor in tensors_of(self.proto(weights=False)) if tensor.data_type]
        return sum(size_in_bytes(dtype_name(t.data_type), tuple(t.dims)) for t in tensors)

    @cached_property
    def digest(self) -> str:
        """Return a hash of the content of the model, its external data and libraries, whatever their paths.

        Raises TensaurusError for a file that cannot be read.
        """
        try:
            if isinstance(self.model, bytes):
                parts = [sha256(self.model).hexdigest()]
            else:
                external = [] if self.is_content_named else self._external_files
                parts = [file_hash(self.model), *map(file_hash, external)]
            parts += [f"library {file_hash(library)}" for library in self.libraries]
        except OSError as error:
            raise TensaurusError(f"cannot be read: {error.strerror}", file=error.filename) from error
        return parts[0] if len(parts) == 1 else sha256("\n".join(parts).encode()).hexdigest()

    @cached_property
    def _external_files(self) -> list[Path]:
        """The files of the model's external data, in the order of their names (read once: it takes long)."""
        from tensaurus.graph.onnx.onnx_frame import tensors_of

        assert isinstance(self.model, Path)
        entries = [e for tensor in tensors_of(self.proto(weights=False)) for e in tensor.external_data]
        locations = {entry.value for entry in entries if entry.key == "location"}
        return [self.model.parent / location for location in sorted(locations)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Build) and (self is other or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without nodes: they are interned in one process only."""
        return {**self.__dict__, "tensors": TensorMap()}

    def __repr__(self) -> str:
        what = f"{len(self.model)} bytes" if isinstance(self.model, bytes) else str(self.model)
        return f"Build({', '.join([what, *map(str, self.libraries)])})"
