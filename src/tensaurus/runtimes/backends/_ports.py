"""Describes the inputs and outputs of a model as onnxruntime does, for runtimes that keep less of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["NamedPort", "ports_of"]


@dataclass(frozen=True)
class NamedPort:
    """A port with its own data, see `backends.Port`."""

    name: str
    type: str
    shape: list[int | str | None]


def ports_of(model: onnx.ModelProto) -> tuple[list[NamedPort], list[NamedPort]]:
    """Return the inputs without a default, and the outputs."""
    graph = model.graph
    weights = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return _ports(v for v in graph.input if v.name not in weights), _ports(graph.output)


def _ports(values: Iterable[onnx.ValueInfoProto]) -> list[NamedPort]:
    return [NamedPort(value.name, _type(value.type), _shape(value.type)) for value in values]


def _type(kind: onnx.TypeProto) -> str:
    from onnx import TensorProto

    if not kind.HasField("tensor_type"):
        return (kind.WhichOneof("value") or "").removesuffix("_type")
    code = kind.tensor_type.elem_type
    return f"tensor({TensorProto.DataType.Name(code).lower()})" if code else "tensor()"


def _shape(kind: onnx.TypeProto) -> list[int | str | None]:
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.tensor_type.shape.dim
    ]
