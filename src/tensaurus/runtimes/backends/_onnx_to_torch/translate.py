"""Translates an ONNX model to a torch.fx.GraphModule for inputs of given shapes.

A node of constant inputs is rendered on them.  Any other is rendered on meta tensors, which tell the shapes
of its outputs, and again on proxies, which record the calls of torch in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends._onnx_to_torch.arithmetic import CONVOLUTIONS
from tensaurus.runtimes.backends._onnx_to_torch.rendering import RENDERINGS, Refused

__all__ = ["Types", "to_channels_last", "declared_inputs", "torch_type", "translate"]

MIN_OPSET = 7  # older opsets differ in broadcasting and in several defaults

Types = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's type for a numpy type; raises BackendError if there is none."""
    kind = getattr(torch, dtype.name, None)
    if not isinstance(kind, torch.dtype):
        raise BackendError(f"torch has no type {dtype.name}")
    return kind


def declared_inputs(model: onnx.ModelProto) -> dict[str, tuple[tuple[int | None, ...], torch.dtype]]:
    """Return sizes (None for open ones) and type of each input without a default; raises BackendError."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for value in model.graph.input:
        if value.name in initializers:
            continue
        kind = value.type.tensor_type
        if not kind.HasField("shape"):
            raise BackendError(f"torch: input {value.name!r} is no tensor of known rank")
        sizes = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
        inputs[value.name] = (sizes, torch_type(helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    return inputs


@dataclass
class _Value:
    """A tensor of the model: its data if constant, else a meta tensor, with only a shape, and a proxy."""

    tensor: torch.Tensor
    proxy: torch.fx.Proxy | None = None

    @property
    def is_constant(self) -> bool:
        return bool(self.tensor.device.type != "meta")


class _Node:
    """An ONNX node as a rendering sees it; see `Rendered`."""

    def __init__(self, proto: onnx.NodeProto, opset: int, values: Sequence[_Value | None]) -> None:
        self.opset, self.outputs, self._values = opset, len(proto.output), values
        self.shapes = [() if v is None else tuple(v.tensor.shape) for v in values]
        self.dtypes = [torch.float32 if v is None else v.tensor.dtype for v in values]
        self.constant: Any = lambda value: value
        schema = onnx.defs.get_schema(proto.op_type, opset, proto.domain)
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
        self._attributes = {a.name: _plain_value(a) for a in (*defaults, *proto.attribute)}
        self._attributes["operator"] = proto.op_type

    def attribute(self, name: str) -> Any:
        return self._attributes.get(name)

    def known(self, place: int) -> torch.Tensor | None:
        value = self._values[place] if place < len(self._values) else None
        if value is None:
            return None
        if not value.is_constant:
            raise Refused("an input that depends on data")
        return value.tensor

    def ints(self, name: str, place: int) -> list[int] | None:
        if (given := self.attribute(name)) is not None:
            return list(given)
        known = self.known(place)
        return None if known is None else [int(number) for number in known.reshape(-1).tolist()]


def _plain_value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    if attribute.name in ("to", "dtype"):
        return torch_type(helper.tensor_dtype_to_np_dtype(value))
    return list(value) if attribute.type in (attribute.INTS, attribute.FLOATS) else value


def _tensor(proto: onnx.TensorProto) -> torch.Tensor:
    array = numpy_helper.to_array(proto)
    torch_type(array.dtype)
    return torch.from_numpy(array.copy())


class _Translation:
    """Renders node by node; `module` is the result."""

    def __init__(self, model: onnx.ModelProto, types: Types) -> None:
        self._opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
        if self._opset < MIN_OPSET:
            raise BackendError(f"torch does not run the model: opset {self._opset} is not supported")
        self._graph = torch.fx.Graph()
        self._tracer = torch.fx.proxy.GraphAppendingTracer(self._graph)
        self._root = torch.nn.Module()
        self._values = {tensor.name: _Value(_tensor(tensor)) for tensor in model.graph.initializer}
        for name, (shape, dtype) in types.items():
            placeholder = self._graph.placeholder(f"x{len(self._graph.nodes)}")
            empty = torch.empty(shape, dtype=dtype, device="meta")
            self._values[name] = _Value(empty, torch.fx.Proxy(placeholder, self._tracer))
        for node in model.graph.node:
            self._render(node)
        results = [self._proxy(self._value(output.name)).node for output in model.graph.output]
        self._graph.output(tuple(results))
        self._graph.eliminate_dead_code()
        self.module = torch.fx.GraphModule(self._root, self._graph)

    def _value(self, name: str) -> _Value:
        if name not in self._values:
            raise BackendError(f"torch: nothing computes {name!r}")
        return self._values[name]

    def _proxy(self, value: _Value) -> torch.fx.Proxy:
        if value.proxy is None:
            value.proxy = self._register_buffer(value.tensor)
        return value.proxy

    def _register_buffer(self, tensor: torch.Tensor) -> torch.fx.Proxy:
        name = f"w{len(list(self._root.buffers()))}"
        self._root.register_buffer(name, tensor)
        return torch.fx.Proxy(self._graph.get_attr(name), self._tracer)

    def _render(self, proto: onnx.NodeProto) -> None:
        values = [self._value(name) if name else None for name in proto.input]
        made = _constant(proto) or self._render_outputs(proto, values)
        if len(made) < len(proto.output):
            raise self._refusal(proto, f"{len(proto.output)} outputs")
        for name, value in zip(proto.output, made, strict=False):
            if name:
                self._values[name] = value

    def _render_outputs(self, proto: onnx.NodeProto, values: Sequence[_Value | None]) -> list[_Value]:
        rendering = RENDERINGS.get(proto.op_type) if proto.domain in ("", "ai.onnx") else None
        if rendering is None:
            raise self._refusal(proto)
        try:
            node = _Node(proto, self._opset, values)
            if all(value is None or value.is_constant for value in values):
                results = rendering(node, *(value and value.tensor for value in values))
                return [_Value(result) for result in _as_list(results)]
            # else render it on meta tensors, for the shapes
            node.constant = lambda tensor: tensor.to("meta")
            shapes = rendering(node, *(value and value.tensor.to("meta") for value in values))
            if all(shape.device.type != "meta" for shape in _as_list(shapes)):
                return [_Value(shape) for shape in _as_list(shapes)]  # the node depends on shapes only
            # and on proxies, for the graph
            node.constant = self._register_buffer
            proxies: Any = rendering(node, *(value and self._proxy(value) for value in values))
            if not isinstance(proxies, (tuple, list)) and isinstance(shapes, (tuple, list)):
                proxies = [proxies[place] for place in range(len(shapes))]
            return [_Value(*pair) for pair in zip(_as_list(shapes), _as_list(proxies), strict=True)]
        except Refused as refused:
            raise self._refusal(proto, str(refused)) from None
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise self._refusal(proto, " ".join(str(error).split())[:200]) from error

    def _refusal(self, proto: onnx.NodeProto, why: str = "") -> BackendError:
        named = f"{proto.op_type} (node {proto.name})" + (f": {why}" if why else "")
        return BackendError(f"torch does not run the model: no support for {named}")


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _constant(proto: onnx.NodeProto) -> list[_Value]:
    """Return the value of a Constant; [] for other nodes."""
    if proto.op_type != "Constant":
        return []
    (attribute,) = proto.attribute
    value = _plain_value(attribute)
    if not isinstance(value, torch.Tensor):
        if attribute.type not in (attribute.INT, attribute.INTS, attribute.FLOAT, attribute.FLOATS):
            raise BackendError(f"torch does not run the model: no support for Constant (node {proto.name})")
        value = torch.tensor(value)
    return [_Value(value)]


def translate(model: onnx.ModelProto, types: Types) -> torch.fx.GraphModule:
    """Translate the model for inputs of these shapes and types, in their order; its outputs are a tuple.

    Nodes that depend on constants and shapes only are computed here.  Raises BackendError, with the operator
    and the node, for a node without a rendering.
    """
    return _Translation(model, types).module


def to_channels_last(module: torch.fx.GraphModule) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """Put the weights of convolutions into channels_last order.

    Returns a function that does the same with the input at a place, if a convolution reads this input.
    """
    places = {node: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    inputs = set()
    for node in module.graph.nodes:
        if node.target in CONVOLUTIONS:
            x, weight = node.args[:2]
            if x in places:
                inputs.add(places[x])
            if weight.op == "get_attr":
                setattr(module, weight.target, _channels_last(getattr(module, weight.target)))
    return lambda place, tensor: _channels_last(tensor) if place in inputs else tensor


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats.get(tensor.ndim, torch.contiguous_format))
