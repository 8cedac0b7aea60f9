"""Read ONNX files with every check, and write them, above 2 GB with weights in a file of their own."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import ModelProto, TensorProto

from tensaurus.graph.ir.tensor_data import numpy_dtype, size_in_bytes
from tensaurus.graph.onnx.normalize_for_checker import normalize_model, sort_nodes
from tensaurus.graph.onnx.onnx_frame import graphs_in, light_copy, tensors_of
from tensaurus.ops.element_type import dtype_name
from tensaurus.system.errors import InvalidModel, TensaurusError
from tensaurus.system.files import replace_file

NO_MODEL = "is not an ONNX model, or is truncated"
TWO_GIGABYTES = 2**31 - 2**20  # bytes of weights in one message; protobuf allows 2^31 with everything else


def load_model(path: str | Path) -> ModelProto:
    """Read and check a model file with its external data.

    Raises TensaurusError naming the file and the reason: unreadable, not ONNX, external data missing or
    outside the model's folder, or refused by ONNX's checker.
    """
    file = Path(path)
    model, raw = _read_message(file)
    external = _load_external(model, file)
    try:
        _run_checker(str(file) if external else raw, file)  # the checker finds external data only from a path
    except TensaurusError:  # perhaps runtimes accept the model nevertheless
        sort_nodes(model.graph)
        check_model(normalize_model(model), file)
    return model


def _read_message(path: Path) -> tuple[ModelProto, bytes]:
    """Return a model without its external data, and the bytes of its file."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            reason = "cannot be read: it is not a regular file"
            raise TensaurusError(reason, file=path, remedy="Name an ONNX file.")
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise TensaurusError(f"cannot be read: {words}", file=path) from error
    model = ModelProto()
    try:
        model.ParseFromString(raw)
    except Exception as error:  # protobuf's DecodeError, and its own RuntimeErrors
        raise InvalidModel(NO_MODEL, file=path) from error
    if not model.HasField("graph") or not model.ir_version or not _has_only_known_fields(model):
        raise InvalidModel(NO_MODEL, file=path)
    if not all(isinstance(text, str) for text in _text_fields(model)):
        raise InvalidModel("has names that are not UTF-8", file=path)
    return model, raw


def check_model(model: ModelProto, file: str | Path | None = None) -> None:
    """Raise TensaurusError where ONNX's checker refuses a model in memory."""
    if weight_bytes(model) < TWO_GIGABYTES:
        _run_checker(model.SerializeToString(), file)
        return
    light = light_copy(model)  # a larger model is checked with empty tensors instead of its weights
    for tensor in tensors_of(light):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.data_location = TensorProto.DEFAULT
            del tensor.dims[:]
            tensor.dims.append(0)
    _run_checker(light.SerializeToString(), file)


def _run_checker(model: str | bytes, file: str | Path | None) -> None:
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        reason = f"ONNX's checker rejects it: {_format_checker_error(error)}"
        remedy = "Export the model again so that onnx.checker.check_model accepts it."
        raise TensaurusError(reason, file=file, remedy=remedy) from error


def _format_checker_error(error: BaseException) -> str:
    """Return the checker's message and the node that it concerns, in one line."""
    sentence, _, context = str(error).partition("==> Context:")
    words = " ".join(sentence.split())[:400] or type(error).__name__
    return f"{words} ({' '.join(context.partition('==>')[0].split())[:200]})" if context else words


def _has_only_known_fields(model: ModelProto) -> bool:
    """Return whether this version of ONNX knows every field of the file: others would be lost on export."""
    messages = [model, *(m for g in graphs_in(model.graph) for m in (g, *g.node))]
    return not any(len(UnknownFieldSet(message)) for message in messages)


def _text_fields(message: Message) -> Iterator[object]:
    """Yield every text in a message; protobuf returns a text that is not UTF-8 as bytes."""
    if isinstance(message, TensorProto):  # without its elements, which would be copied
        yield from (message.name, message.doc_string)
        yield from (text for entry in message.external_data for text in (entry.key, entry.value))
        return
    for field, value in message.ListFields():
        repeated = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        if field.type == field.TYPE_STRING:
            yield from value if repeated else (value,)
        elif field.type == field.TYPE_MESSAGE:
            for part in value if repeated else (value,):
                yield from _text_fields(part)


# ------------------------------------------------------------------------------------ external data


def external_files(file: Path) -> dict[str, Path]:
    """Return the files that hold a model's external data, by their places in the model's folder.

    Raises TensaurusError where the model or a file of it cannot be read.
    """
    model, _ = _read_message(file)
    folder = file.absolute().parent.resolve()
    found = (
        _find_external_file(tensor, folder, file)
        for tensor in tensors_of(model)
        if tensor.data_location == TensorProto.EXTERNAL
    )
    return {str(path.relative_to(folder)): path for path in found}


def _load_external(model: ModelProto, file: Path) -> bool:
    """Load external data into the tensors; return whether there was any."""
    folder = file.absolute().parent.resolve()
    maps: dict[Path, mmap.mmap | bytes] = {}
    found = False
    with ExitStack() as opened:
        for tensor in tensors_of(model):
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            found = True
            target = _find_external_file(tensor, folder, file)
            if target not in maps:
                maps[target] = _map_file(target, tensor, file, opened)
            start, length = _external_extent(tensor, len(maps[target]), file)
            tensor.raw_data = maps[target][start : start + length]
            tensor.data_location = TensorProto.DEFAULT
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return found


def _find_external_file(tensor: TensorProto, folder: Path, file: Path) -> Path:
    """Return the file that holds a tensor.  It must be in the model's folder, also after following links."""
    label = f"the external data of tensor {tensor.name}"
    locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
    location = locations[-1] if locations else ""
    if not location or "\0" in location:
        raise InvalidModel(f"{label} has no location", file=file)
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
    try:
        target = (folder / location).resolve()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TensaurusError(
            f"{label} is at {location!r}, which cannot be resolved: {reason}",
            file=file,
            remedy="Put the data file beside the model, or repair the link.",
        ) from error
    if absolute or ".." in PurePosixPath(location).parts or not target.is_relative_to(folder):
        raise TensaurusError(
            f"{label} is at {location!r}, outside the model's folder",
            file=file,
            remedy="Move the data file into the model's folder.",
        )
    if not target.is_file():
        raise TensaurusError(
            f"{label} is missing: {location}", file=file, remedy="Put the data file into the model's folder."
        )
    return target


def _map_file(target: Path, tensor: TensorProto, file: Path, opened: ExitStack) -> mmap.mmap | bytes:
    try:
        handle = opened.enter_context(target.open("rb"))
        if target.stat().st_size == 0:
            return b""
        return opened.enter_context(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise TensaurusError(
            f"the external data of tensor {tensor.name} cannot be read: {error.strerror}", file=file
        ) from error


def _external_extent(tensor: TensorProto, size: int, file: Path) -> tuple[int, int]:
    """Return (offset, length) of the elements in a file of `size` bytes."""
    label = f"the external data of tensor {tensor.name}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        wanted = size_in_bytes(dtype_name(tensor.data_type), tuple(tensor.dims))
        numpy_dtype(dtype_name(tensor.data_type))
        start = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else wanted
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidModel(f"{label} cannot be read: {error}", file=file) from error
    reason = ""
    if tensor.data_type == TensorProto.STRING:
        reason = "cannot be read: strings must be in the model file itself"
    elif min(tensor.dims, default=0) < 0:
        reason = f"cannot be read: its shape {list(tensor.dims)} has a negative size"
    elif length != wanted:
        reason = f"has {length} bytes, but its type and shape {list(tensor.dims)} need {wanted}"
    if reason:
        raise InvalidModel(f"{label} {reason}", file=file)
    if start < 0 or start + length > size:
        reason = f"{label} is truncated: it needs bytes {start} to {start + length} of a file of {size}"
        raise TensaurusError(reason, file=file, remedy="Copy the data file again, or export the model again.")
    return start, length


# ------------------------------------------------------------------------------------------ writing


def save_model(model: ModelProto, path: str | Path) -> None:
    """Write the model under another name and then rename it; above 2 GB weights go to PATH.data."""
    if weight_bytes(model) < TWO_GIGABYTES:
        with replace_file(path) as beside:
            beside.write_bytes(model.SerializeToString(deterministic=True))
        return
    location = f"{Path(path).name}.data"
    stored = light_copy(model)
    with replace_file(Path(path).with_name(location)) as data, replace_file(path) as beside:
        with data.open("wb") as file:
            for tensor, light in zip(_storable_tensors(model), _storable_tensors(stored), strict=True):
                if (
                    light.data_location != TensorProto.EXTERNAL
                    or tensor.data_location == TensorProto.EXTERNAL
                ):
                    continue
                file.write(b"\0" * (-file.tell() % 4096))  # to the next page, for runtimes that map the file
                start, raw = file.tell(), tensor.raw_data
                file.write(raw)
                for key, value in (("location", location), ("offset", start), ("length", len(raw))):
                    light.external_data.add(key=key, value=str(value))
        beside.write_bytes(stored.SerializeToString(deterministic=True))


def _storable_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield the tensors whose elements a light copy may leave out."""
    for graph in graphs_in(model.graph):
        yield from graph.initializer
        yield from (a.t for node in graph.node for a in node.attribute if a.HasField("t"))


def weight_bytes(model: ModelProto) -> int:
    """Return the bytes of the tensors with raw data; all others are small."""
    raw = (t for t in tensors_of(model) if t.HasField("raw_data"))
    try:
        return sum(size_in_bytes(dtype_name(t.data_type), tuple(t.dims)) for t in raw)
    except (ValueError, KeyError, TypeError):  # an unknown element type, which the checker reports later
        return sum(len(t.raw_data) for t in tensors_of(model))
