"""What a backend compiles, a worker times and a result saves: a model with the libraries of its operators.

Whoever only runs one needs neither onnx nor our operators: they are imported where a method needs them.
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

__all__ = ["Build", "TensorMap"]


@dataclass(frozen=True)
class TensorMap:
    """What the tensors of an exported model are, by name; inputs and constants have no entry.

    written   the node that stands there, constants folded and expansions in the place of what they expand
    computed  the nodes of the program that it is computed for: inside an expansion, that of the whole
    """

    written: Mapping[str, Node] = field(default_factory=dict)
    computed: Mapping[str, frozenset[Node]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Build:
    """A model as runtimes take it; two of the same content are equal.

    model      an ONNX model's bytes, or the path of its file
    libraries  shared objects with custom operators; the files must stay where they are
    tensors    what its tensors are, where it was exported from a program; stays in this process
    named      whether its external data are files that are named by their content (`graph/onnx/weight_files`)
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
        shared: bool = True,
    ) -> Build:
        """The model's bytes; a file in the folder where that is too large for a message.

        Large initializers are files of their own where they are `shared` with others of the folder.
        """
        from tensaurus.graph.onnx.model_file import TWO_GIGABYTES, save_model, weight_bytes
        from tensaurus.graph.onnx.weight_files import WeightFiles, is_outside

        light = WeightFiles(folder).light(model) if shared else model
        path = folder / f"model_{len(list(folder.iterdir()))}.onnx"
        if weight_bytes(light) >= TWO_GIGABYTES:  # of a message
            save_model(model, path)
            return cls(path, tuple(libraries), tensors)
        written = bytes(light.SerializeToString(deterministic=True))
        if not is_outside(light):
            return cls(written, tuple(libraries), tensors)
        path.write_bytes(written)
        return cls(path, tuple(libraries), tensors, is_content_named=True)

    @classmethod
    def from_file(cls, path: str | Path) -> Build:
        """A model's file, with the libraries beside it that it names.  Raises TensaurusError."""
        from tensaurus.graph.onnx.kernel_libraries import find_libraries

        return cls(Path(path), find_libraries(path))

    def proto(self, *, weights: bool = True) -> ModelProto:
        """The model read again; of a file without `weights`, external data stays outside.

        Raises whatever onnx and the file system find wrong with it.
        """
        import onnx

        if isinstance(self.model, bytes):
            return onnx.load_from_string(self.model)
        model = onnx.load(self.model, load_external_data=weights)
        if weights:
            from tensaurus.graph.onnx.onnx_frame import tensors_of

            for tensor in tensors_of(model):  # as it was before its elements were put outside
                # to clear a field of what is not there would make it
                if tensor.HasField("data_location") and tensor.data_location == onnx.TensorProto.DEFAULT:
                    tensor.ClearField("data_location")
        return model

    @property
    def size(self) -> int:
        """Bytes of the model, without external data."""
        return len(self.model) if isinstance(self.model, bytes) else self.model.stat().st_size

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of the model with its external data; without these where they cannot be read."""
        beside = 0
        if isinstance(self.model, Path):
            with suppress(OSError, ValueError):  # protobuf's DecodeError is one
                beside = sum(file.stat().st_size for file in self._external_files())
        return self.size + beside

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
        """A hash of the content, external data and libraries included, wherever these lie.

        Raises TensaurusError for a file that cannot be read.
        """
        try:
            if isinstance(self.model, bytes):
                parts = [sha256(self.model).hexdigest()]
            else:
                external = [] if self.is_content_named else self._external_files()
                parts = [file_hash(self.model), *map(file_hash, external)]
            parts += [f"library {file_hash(library)}" for library in self.libraries]
        except OSError as error:
            raise TensaurusError(f"cannot be read: {error.strerror}", file=error.filename) from error
        return parts[0] if len(parts) == 1 else sha256("\n".join(parts).encode()).hexdigest()

    def _external_files(self) -> list[Path]:
        """The files of the model's external data, in the order of their names."""
        from tensaurus.graph.onnx.onnx_frame import tensors_of

        assert isinstance(self.model, Path)
        entries = [e for tensor in tensors_of(self.proto(weights=False)) for e in tensor.external_data]
        places = {entry.value for entry in entries if entry.key == "location"}
        return [self.model.parent / place for place in sorted(places)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Build) and (self is other or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __getstate__(self) -> dict[str, Any]:
        """Nodes do not cross the border of a process."""
        return {**self.__dict__, "tensors": TensorMap()}

    def __repr__(self) -> str:
        what = f"{len(self.model)} bytes" if isinstance(self.model, bytes) else str(self.model)
        return f"Build({', '.join([what, *map(str, self.libraries)])})"
