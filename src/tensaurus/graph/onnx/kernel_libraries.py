"""Save kernel libraries (shared objects with generated kernels) beside a model's file, and find them again.

The model's metadata hold the name and SHA-256 of each library, so that another library is never loaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from onnx import ModelProto, StringStringEntryProto

from tensaurus.graph.onnx.model_file import save_model
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import file_hash, replace_file

METADATA_KEY = "tensaurus.kernels"  # its value is a JSON object {library name: SHA-256}
_METADATA_FIELD = 14  # number of the field metadata_props in a ModelProto


def find_libraries(model: str | Path) -> tuple[Path, ...]:
    """Return the libraries that a model's file names, none where the file is no model.

    Weights are not read.  Raises TensaurusError for a library that is missing or has another content.
    """
    found = []
    for name, digest in _library_hashes(Path(model)).items():
        path = Path(model).parent / name
        if not name or Path(name).name != name:
            reason = f"its kernel library {name!r} is not in the model's folder"
            raise TensaurusError(reason, file=model, remedy="Optimize the model again.")
        try:
            same = file_hash(path) == digest
        except OSError as error:
            raise TensaurusError(
                f"its kernel library {name} cannot be read: {error.strerror}",
                file=model,
                remedy="Put the library into the model's folder.",
            ) from error
        if not same:
            raise TensaurusError(
                f"its kernel library {name} is not the one that it was saved with",
                file=model,
                remedy="Copy a model together with its library, or optimize it again.",
            )
        found.append(path.absolute())  # the loader searches other folders for a name without a folder
    return tuple(found)


def library_path(model: str | Path, number: int = 0) -> Path:
    """Return the path of a library of a model's file: fast.kernels.so for fast.onnx."""
    path = Path(model)
    return path.with_name(f"{path.stem}.kernels{number or ''}.so")


def require_library_path(model: str | Path, library: Path | None = None) -> None:
    """Raise TensaurusError where saving a library would overwrite a file that another model needs.

    A file of the same content may be overwritten, and one that only the old file of this model names.
    """
    _require_path(library_path(model), Path(model), library)


def _require_path(target: Path, model: Path, library: Path | None) -> None:
    if not target.exists() or library is not None and file_hash(target) == file_hash(library):
        return
    users = _other_users(target, model)
    if users or target.name not in _library_hashes(model):
        owner = f"{users[0]} needs it" if users else f"{model.name} does not name it"
        raise TensaurusError(
            f"its kernel library would overwrite {target.name}, and {owner}",
            file=model,
            remedy="Give the result another name, or remove the old library.",
        )


def _other_users(library: Path, model: Path) -> list[str]:
    """Return the names of the other models in the library's folder that name it."""
    others = (other for other in sorted(library.parent.glob("*.onnx")) if other.name != model.name)
    return [other.name for other in others if library.name in _library_hashes(other)]


def save_with_libraries(model: ModelProto, path: str | Path, libraries: Sequence[Path]) -> None:
    """Write the model with the names of its libraries in its metadata, and the libraries beside it.

    Every file is written under another name first and then renamed.  A library that only the file before
    named is removed: the next result could not take its place.  Raises TensaurusError as
    `require_library_path` does.
    """
    before = _library_hashes(Path(path))
    targets = [library_path(path, number) for number in range(len(libraries))]
    with ExitStack() as stack:
        for library, target in zip(libraries, targets, strict=True):
            _require_path(target, Path(path), library)
            shutil.copyfile(library, stack.enter_context(replace_file(target)))
        named = {target.name: library for target, library in zip(targets, libraries, strict=True)}
        save_model(_with_library_hashes(model, named), path)
    for name, digest in before.items():
        old = Path(path).with_name(name)
        is_ours = name not in named and old.name == name and old.is_file() and file_hash(old) == digest
        if is_ours and not _other_users(old, Path(path)):
            old.unlink(missing_ok=True)


def _with_library_hashes(model: ModelProto, libraries: Mapping[str, Path]) -> ModelProto:
    """Return the model with exactly these libraries in its metadata."""
    others = [entry for entry in model.metadata_props if entry.key != METADATA_KEY]
    if not libraries and len(others) == len(model.metadata_props):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.metadata_props[:]
    copy.metadata_props.extend(others)
    if libraries:
        hashes = {name: file_hash(library) for name, library in libraries.items()}
        copy.metadata_props.add(key=METADATA_KEY, value=json.dumps(hashes))
    return copy


def _library_hashes(model: Path) -> dict[str, str]:
    """Return the SHA-256 of each library that a model's file names, empty where the file is no model."""
    try:
        with model.open("rb") as file:
            for raw in _read_fields(file, _METADATA_FIELD):
                entry = StringStringEntryProto.FromString(raw)
                if entry.key == METADATA_KEY:
                    return {str(name): str(digest) for name, digest in json.loads(entry.value).items()}
    except (OSError, ValueError, AttributeError):  # protobuf's DecodeError is a ValueError
        pass
    return {}


def _read_fields(file: IO[bytes], wanted: int) -> Iterator[bytes]:
    """Yield the bytes of each field with this number in a protobuf message, without reading other fields.

    Raises ValueError where the file is no message.
    """
    end = file.seek(0, 2)
    file.seek(0)
    while (tag := _read_varint(file)) is not None:
        # wire types of protobuf: 0 a varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            _read_varint(file)
        elif wire in (1, 5):
            file.seek(8 if wire == 1 else 4, 1)
        elif wire == 2:
            length = _read_varint(file) or 0
            if file.tell() + length > end:
                raise ValueError("truncated")
            if number == wanted:
                yield file.read(length)
            else:
                file.seek(length, 1)
        else:
            raise ValueError(f"wire type {wire}")


def _read_varint(file: IO[bytes]) -> int | None:
    """Return the next number, None at the end of the file."""
    value, shift = 0, 0
    while byte := file.read(1):
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    return None
