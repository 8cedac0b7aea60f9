"""The elements of a constant: compared by content, stored as the model has them."""

from __future__ import annotations

import hashlib
import sys
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tensaurus.ops.element_type import dtype_code, dtype_name

Array: TypeAlias = np.ndarray[Any, Any]

# bits of the element types that ONNX packs several to a byte
PACKED_BITS = {name: bits for bits in (2, 4) for name in (f"int{bits}", f"uint{bits}", f"float{bits}e2m1")}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return numpy's (or ml_dtypes') element type of this name."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype_code(dtype)))


def size_in_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor as ONNX's raw data."""
    count = prod(shape)
    if dtype in PACKED_BITS:
        return (count * PACKED_BITS[dtype] + 7) // 8
    return count * numpy_dtype(dtype).itemsize


class TensorData:
    """The elements of a constant: an array, or the TensorProto of the model.

    Equal contents have equal digests.  Raises ValueError where the TensorProto contradicts itself.
    """

    __slots__ = ("_array", "_digest", "_proto", "dtype", "shape")

    def __init__(self, array: Array | None = None, proto: TensorProto | None = None):
        if array is not None and array.dtype.kind in "OSU":
            proto, array = _encode_strings(array), None
        self._array, self._proto = array, proto
        self._digest: bytes | None = None
        if proto is not None:
            if proto.data_location == TensorProto.EXTERNAL:
                raise ValueError("its external data is not loaded")
            self.dtype = dtype_name(proto.data_type)
            self.shape = tuple(int(n) for n in proto.dims)
            if min(self.shape, default=0) < 0:
                raise ValueError(f"its shape is {list(self.shape)}")
            self._digest = self._hash()  # which raises ValueError where elements are missing
        else:
            assert array is not None
            self._array = np.ascontiguousarray(array).reshape(array.shape)
            self.dtype = dtype_name(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
            self.shape = array.shape

    @classmethod
    def from_file(cls, file: Path, dtype: str, shape: tuple[int, ...]) -> TensorData:
        """Return the elements that a file holds as ONNX's raw data.

        Its name, in hex digits, is taken for their digest: no file with other elements may have that name.
        The file is mapped into memory and not hashed, so that 575 MB of weights are there at once.
        """
        if dtype in PACKED_BITS or sys.byteorder == "big":
            raw = file.read_bytes()
            return cls(proto=TensorProto(data_type=dtype_code(dtype), dims=shape, raw_data=raw))
        data = cls(np.memmap(file, np.uint8, mode="r").view(numpy_dtype(dtype)).reshape(shape))
        data._digest = bytes.fromhex(file.stem)
        return data

    @property
    def digest(self) -> bytes:
        """Return a hash of the type, the shape and the elements."""
        if self._digest is None:
            self._digest = self._hash()
        return self._digest

    def _hash(self) -> bytes:
        state = hashlib.blake2b(f"{self.dtype}{self.shape}".encode(), digest_size=16)
        proto = self._proto
        if self.dtype == "string":
            assert proto is not None
            if len(proto.string_data) != prod(self.shape):
                raise ValueError(f"{len(proto.string_data)} elements for the shape {list(self.shape)}")
            for text in proto.string_data:
                state.update(len(text).to_bytes(8, "little") + text)
        elif proto is not None and proto.HasField("raw_data"):
            raw = proto.raw_data
            if len(raw) != size_in_bytes(self.dtype, self.shape):
                raise ValueError(f"{len(raw)} bytes for {self.dtype}{list(self.shape)}")
            state.update(self.array.tobytes() if self.dtype in PACKED_BITS else raw)
        else:
            state.update(self.array.tobytes())
        return state.digest()

    @property
    def array(self) -> Array:
        """Return the elements in the constant's own dtype (read-only by convention)."""
        if self._array is None:
            assert self._proto is not None
            is_text = self.dtype == "string"  # may be any bytes, although ONNX's specification says UTF-8
            self._array = _decode_strings(self._proto) if is_text else numpy_helper.to_array(self._proto)
        return self._array

    @property
    def raw(self) -> bytes | memoryview | None:
        """Return the elements as ONNX's raw data, None where the model stores them in another field."""
        if self._proto is not None:
            return bytes(self._proto.raw_data) if self._proto.HasField("raw_data") else None
        array = self.array
        if self.dtype in PACKED_BITS:
            return bytes(numpy_helper.from_array(array).raw_data)
        if sys.byteorder == "big":
            array = array.astype(array.dtype.newbyteorder("<"))
        return array.reshape(-1).view(np.uint8).data

    def proto_without_elements(self, name: str) -> TensorProto:
        """Return the TensorProto of the constant under another name, without elements."""
        proto = TensorProto(name=name, data_type=dtype_code(self.dtype), dims=self.shape)
        if self._proto is not None:
            proto.metadata_props.extend(self._proto.metadata_props)
            if self._proto.HasField("doc_string"):
                proto.doc_string = self._proto.doc_string
        return proto

    def proto(self, name: str) -> TensorProto:
        """Return the TensorProto of the constant under another name."""
        if self._proto is not None:
            proto = TensorProto()
            proto.CopyFrom(self._proto)
            proto.name = name
            return proto
        return numpy_helper.from_array(self.array, name)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorData) and self.digest == other.digest

    def __repr__(self) -> str:
        if prod(self.shape) <= 4 and self.dtype != "string":
            return f"{self.dtype}{list(self.shape)}{self.array.ravel().tolist()}"
        return f"{self.dtype}{list(self.shape)}#{self.digest.hex()[:12]}"


UTF8_ERRORS = "surrogateescape"  # bytes that are no UTF-8 come back unchanged


def _decode_strings(proto: TensorProto) -> Array:
    texts = np.empty(len(proto.string_data), object)
    texts[:] = [text.decode(errors=UTF8_ERRORS) for text in proto.string_data]
    return texts.reshape(tuple(proto.dims))


def _encode_strings(array: Array) -> TensorProto:
    proto = TensorProto(data_type=TensorProto.STRING, dims=array.shape)
    texts = array.ravel().tolist()
    proto.string_data.extend(t if isinstance(t, bytes) else str(t).encode(errors=UTF8_ERRORS) for t in texts)
    return proto
