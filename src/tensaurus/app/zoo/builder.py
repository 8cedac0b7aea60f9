"""Builds an ONNX model node by node, with seeded weights, as an exporter would write it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import helper, numpy_helper, shape_inference

__all__ = ["OPSET", "Builder", "Value"]

OPSET = 18
IR_VERSION = 9

Shape = tuple[int, ...]
Sizes = int | tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the model under construction."""

    name: str
    shape: Shape
    dtype: str

    @property
    def channels(self) -> int:
        """The size of axis 1."""
        return self.shape[1]


class Builder:
    """One model under construction: float32, static shapes, one opset.

    Weights are drawn from a generator seeded by the model's seed and the weight's own name, so a weight does
    not depend on what was drawn before it. Their names are those of the published implementation's
    parameters, where the model has one, so that weights can be carried over. Shapes come from onnx's
    inference, node by node.
    """

    def __init__(self, name: str, seed: int = 0, opset: int = OPSET) -> None:
        self.name, self.seed, self.opset = name, seed, opset
        self._inputs: list[Value] = []
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, tuple[Value, onnx.TensorProto]] = {}
        self._types: dict[str, onnx.TypeProto] = {}
        self._count = 0

    def input(self, name: str, *shape: int, dtype: str = "float32") -> Value:
        """Add an input of the model."""
        value = Value(name, shape, dtype)
        self._inputs.append(value)
        self._types[name] = _type_proto(value)
        return value

    def constant(self, array: ArrayLike, name: str | None = None, dtype: str | None = None) -> Value:
        """Add an initializer: float32, int64 for integers, or of the given dtype."""
        data = np.asarray(array)
        data = data.astype(dtype or ("int64" if data.dtype.kind in "iu" else "float32"))
        value = Value(name or self._fresh_name("constant"), data.shape, str(data.dtype))
        known = self._weights.get(value.name)
        tensor = numpy_helper.from_array(np.ascontiguousarray(data).reshape(data.shape), value.name)
        if known is not None:
            if known[1] != tensor:
                raise ValueError(f"two different weights have the name {value.name}")
            return known[0]
        self._weights[value.name] = (value, tensor)
        self._types[value.name] = _type_proto(value)
        return value

    def weight(self, name: str, shape: Sequence[int], *, std: float = 1.0, mean: float = 0.0) -> Value:
        """Add an initializer of normal random numbers; a name that exists returns the same tensor again."""
        if name in self._weights:
            return self._weights[name][0]
        drawn = self.random(name).standard_normal(tuple(shape), np.float32)
        drawn *= np.float32(std)
        return self.constant(drawn + np.float32(mean) if mean else drawn, name)

    def random(self, name: str) -> np.random.Generator:
        """Return the random generator of the weight of that name."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def node(self, operator: str, *inputs: Value | None, name: str | None = None, **attributes: Any) -> Value:
        """Add a node with one output; None is an absent optional input, or an absent attribute."""
        return self.nodes(operator, 1, *inputs, name=name, **attributes)[0]

    def nodes(
        self, operator: str, outputs: int, *inputs: Value | None, name: str | None = None, **attributes: Any
    ) -> tuple[Value, ...]:
        """Add a node with several outputs."""
        present = {key: value for key, value in attributes.items() if value is not None}
        name = name or self._fresh_name(operator)
        names = [name] if outputs == 1 else [f"{name}.{index}" for index in range(outputs)]
        read = ["" if value is None else value.name for value in inputs]
        while read and not read[-1]:  # as exporters do: the runtimes' fusions match the number of inputs
            read.pop()
        proto = helper.make_node(operator, read, names, name=name, **present)
        # from the types of the inputs, and the values of those on which shapes may depend
        types = shape_inference.infer_node_outputs(
            onnx.defs.get_schema(operator, self.opset),
            proto,
            {key: self._types[key] for key in read if key},
            {
                key: self._weights[key][1]
                for key in read
                if key in self._weights and _may_set_shapes(self._weights[key][0])
            },
            opset_imports=[helper.make_opsetid("", self.opset)],
        )
        values = tuple(_typed_value(key, types[key]) for key in names)
        self._types |= {key: types[key] for key in names}
        self._nodes.append(proto)
        return values

    def model(self, *outputs: Value, names: Sequence[str] = ()) -> onnx.ModelProto:
        """Return the finished model; its outputs have the given `names`, or output, output1, ..."""
        new_names = list(names) or [f"output{index or ''}" for index in range(len(outputs))]
        renamed = dict(zip((value.name for value in outputs), new_names, strict=True))
        for proto in self._nodes:
            for part in (proto.input, proto.output):
                part[:] = [renamed.get(key, key) for key in part]
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_value_info(value.name, self._types[value.name]) for value in self._inputs],
            [helper.make_value_info(renamed[value.name], self._types[value.name]) for value in outputs],
            [tensor for _, tensor in self._weights.values()],
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(
            graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="tensaurus.app.zoo"
        )

    # Layers that many models share

    def conv(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = False,
        gain: float = 2.0,
    ) -> Value:
        """Add a convolution over all axes after the second, with weights NAME.weight and NAME.bias.

        `padding` is one size, one for each axis, or the sizes before each axis and then those after each.
        `gain` is the output's mean square over the input's: 2 if a ReLU follows (He et al., 2015).
        """
        rank = len(x.shape) - 2
        window = _size_per_axis(kernel, rank)
        inner = x.channels // groups
        shape = (channels, inner, *window)
        weight = self.weight(f"{name}.weight", shape, std=(gain / (inner * prod(window))) ** 0.5)
        offset = self.weight(f"{name}.bias", (channels,), std=0.1) if bias else None
        return self.node(
            "Conv", x, weight, offset, name=name, kernel_shape=window, strides=_size_per_axis(stride, rank),
            pads=_pads(padding, rank), dilations=_size_per_axis(dilation, rank), group=groups,
        )

    def conv_transpose(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        bias: bool = False,
        gain: float = 2.0,
    ) -> Value:
        """Add a transposed convolution with weights NAME.weight [in, out, *kernel] and NAME.bias."""
        rank = len(x.shape) - 2
        window, steps = _size_per_axis(kernel, rank), _size_per_axis(stride, rank)
        fan_in = x.channels * prod(window) / prod(steps)  # products that an inner output element sums
        weight = self.weight(f"{name}.weight", (x.channels, channels, *window), std=(gain / fan_in) ** 0.5)
        offset = self.weight(f"{name}.bias", (channels,), std=0.1) if bias else None
        return self.node(
            "ConvTranspose", x, weight, offset, name=name, kernel_shape=window, strides=steps,
            pads=_pads(padding, rank), output_padding=_size_per_axis(output_padding, rank),
        )

    def batch_norm(self, x: Value, name: str, *, epsilon: float = 1e-5, gain: float = 1.0) -> Value:
        """Add a batch normalization; a `gain` below 1 scales down the end of a residual branch."""
        parts = []
        for part, low, high in (
            ("weight", 0.5 * gain, 1.3 * gain),
            ("bias", -0.2, 0.2),
            ("running_mean", -0.2, 0.2),
            ("running_var", 0.5, 1.5),
        ):
            key = f"{name}.{part}"
            drawn: NDArray[Any] = self.random(key).uniform(low, high, x.channels)
            parts.append(self.constant(drawn, key))
        return self.node("BatchNormalization", x, *parts, name=name, epsilon=epsilon)

    def conv_norm(
        self,
        x: Value,
        conv: str,
        norm: str,
        channels: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        groups: int = 1,
        gain: float = 2.0,
        epsilon: float = 1e-5,
    ) -> Value:
        """Add a convolution without bias, named `conv`, and the batch normalization `norm` of its output."""
        y = self.conv(x, conv, channels, kernel, stride=stride, padding=padding, groups=groups, gain=gain)
        return self.batch_norm(y, norm, epsilon=epsilon)

    def layer_norm(self, x: Value, name: str, *, epsilon: float = 1e-5) -> Value:
        """Add a layer normalization over the last axis."""
        size = (x.shape[-1],)
        scale = self.weight(f"{name}.weight", size, std=0.1, mean=1.0)
        return self.node(
            "LayerNormalization", x, scale, self.weight(f"{name}.bias", size, std=0.1), name=name, axis=-1,
            epsilon=epsilon,
        )

    def relu(self, x: Value) -> Value:
        return self.node("Relu", x)

    def add(self, x: Value, y: Value) -> Value:
        return self.node("Add", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.node("Mul", x, y)

    def concat(self, *parts: Value, axis: int = 1) -> Value:
        return self.node("Concat", *parts, axis=axis)

    def max_pool(
        self, x: Value, kernel: Sizes, stride: Sizes, padding: Sizes = 0, *, ceil: bool = False
    ) -> Value:
        """Add a maximum over windows; `ceil` lets the last window reach over the edge."""
        rank = len(x.shape) - 2
        return self.node(
            "MaxPool", x, kernel_shape=_size_per_axis(kernel, rank), strides=_size_per_axis(stride, rank),
            pads=_pads(padding, rank), ceil_mode=int(ceil),
        )

    def average_pool(
        self,
        x: Value,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes = 0,
        *,
        count_padding: bool = True,
        ceil: bool = False,
    ) -> Value:
        """Add a mean over windows; `count_padding` counts the zeros of the padding, as torch does."""
        rank = len(x.shape) - 2
        return self.node(
            "AveragePool", x, kernel_shape=_size_per_axis(kernel, rank),
            strides=_size_per_axis(stride, rank), pads=_pads(padding, rank),
            count_include_pad=int(count_padding), ceil_mode=int(ceil),
        )

    def global_pool(self, x: Value) -> Value:
        """Add a mean over all axes after the second, flattened to [N, C]."""
        return self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)

    def linear(self, x: Value, name: str, features: int, *, bias: bool = True, gain: float = 1.0) -> Value:
        """Add x W^T + b with weights NAME.weight [features, in] and NAME.bias.

        As torch's exporter does, a matrix x gives a Gemm, another x a MatMul by the transposed weight, which
        is called NAME.weight.T.
        """
        inner = x.shape[-1]
        std = (gain / inner) ** 0.5
        offset = self.weight(f"{name}.bias", (features,), std=0.1) if bias else None
        if len(x.shape) == 2:
            weight = self.weight(f"{name}.weight", (features, inner), std=std)
            return self.node("Gemm", x, weight, offset, name=name, transB=1)
        product = self.node("MatMul", x, self.weight(f"{name}.weight.T", (inner, features), std=std))
        return product if offset is None else self.node("Add", product, offset, name=name)

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def transpose(self, x: Value, *order: int) -> Value:
        return self.node("Transpose", x, perm=order)

    def _fresh_name(self, word: str) -> str:
        self._count += 1
        return f"{word}_{self._count}"


def _size_per_axis(sizes: Sizes, rank: int) -> Shape:
    """Return a size for each axis; a single size is that of all."""
    return (sizes,) * rank if isinstance(sizes, int) else tuple(sizes)


def _pads(sizes: Sizes, rank: int) -> Shape:
    """Return the sizes before each axis, then the sizes after each axis."""
    spread = _size_per_axis(sizes, rank)
    return spread if len(spread) == 2 * rank else spread * 2


def _may_set_shapes(value: Value) -> bool:
    """Return whether shape inference may need the values: integers, or few floats (as scales of a Resize)."""
    return value.dtype == "int64" or prod(value.shape) <= 16


def _type_proto(value: Value) -> onnx.TypeProto:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return helper.make_tensor_type_proto(code, value.shape)


def _typed_value(name: str, kind: onnx.TypeProto) -> Value:
    dims = kind.tensor_type.shape.dim
    if not kind.tensor_type.HasField("shape") or not all(dim.HasField("dim_value") for dim in dims):
        raise ValueError(f"ONNX cannot infer the shape of {name}")
    dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    return Value(name, tuple(dim.dim_value for dim in dims), str(dtype))
