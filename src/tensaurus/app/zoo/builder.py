"""Writes an ONNX model node by node, with seeded weights, as an exporter would leave it."""

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
        """An input of the model."""
        value = Value(name, shape, dtype)
        self._inputs.append(value)
        self._types[name] = _type(value)
        return value

    def constant(self, array: ArrayLike, name: str | None = None, dtype: str | None = None) -> Value:
        """An initializer with these values: float32 unless they are integers or dtype says otherwise."""
        made = np.asarray(array)
        made = made.astype(dtype or ("int64" if made.dtype.kind in "iu" else "float32"))
        value = Value(name or self._fresh("constant"), made.shape, str(made.dtype))
        known = self._weights.get(value.name)
        tensor = numpy_helper.from_array(np.ascontiguousarray(made).reshape(made.shape), value.name)
        if known is not None:
            if known[1] != tensor:
                raise ValueError(f"two different weights are called {value.name}")
            return known[0]
        self._weights[value.name] = (value, tensor)
        self._types[value.name] = _type(value)
        return value

    def weight(self, name: str, shape: Sequence[int], *, std: float = 1.0, mean: float = 0.0) -> Value:
        """A normal random initializer; the same name again gives the same tensor."""
        if name in self._weights:
            return self._weights[name][0]
        drawn = self.random(name).standard_normal(tuple(shape), np.float32)
        drawn *= np.float32(std)
        return self.constant(drawn + np.float32(mean) if mean else drawn, name)

    def random(self, name: str) -> np.random.Generator:
        """The generator for the weight of that name."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def node(self, operator: str, *inputs: Value | None, name: str | None = None, **attributes: Any) -> Value:
        """A node with one output; None is an absent optional input, an attribute of None is left out."""
        return self.nodes(operator, 1, *inputs, name=name, **attributes)[0]

    def nodes(
        self, operator: str, outputs: int, *inputs: Value | None, name: str | None = None, **attributes: Any
    ) -> tuple[Value, ...]:
        """A node with several outputs."""
        given = {key: value for key, value in attributes.items() if value is not None}
        name = name or self._fresh(operator)
        names = [name] if outputs == 1 else [f"{name}.{place}" for place in range(outputs)]
        read = ["" if value is None else value.name for value in inputs]
        while read and not read[-1]:  # exporters leave these out, and runtimes' fusions count inputs
            read.pop()
        made = helper.make_node(operator, read, names, name=name, **given)
        types = shape_inference.infer_node_outputs(
            onnx.defs.get_schema(operator, self.opset),
            made,
            {key: self._types[key] for key in read if key},
            {
                key: self._weights[key][1]
                for key in read
                if key in self._weights and _small(self._weights[key][0])
            },
            opset_imports=[helper.make_opsetid("", self.opset)],
        )
        values = tuple(_value(key, types[key]) for key in names)
        self._types |= {key: types[key] for key in names}
        self._nodes.append(made)
        return values

    def model(self, *outputs: Value, names: Sequence[str] = ()) -> onnx.ModelProto:
        """The finished model; its outputs are called `names`, or output, output1, ...

        Raises onnx's errors where the model is not valid.
        """
        called = list(names) or ["output" if not place else f"output{place}" for place in range(len(outputs))]
        renamed = dict(zip((value.name for value in outputs), called, strict=True))
        for made in self._nodes:
            for part in (made.input, made.output):
                part[:] = [renamed.get(key, key) for key in part]
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_value_info(value.name, self._types[value.name]) for value in self._inputs],
            [helper.make_value_info(renamed[value.name], self._types[value.name]) for value in outputs],
            [tensor for _, tensor in self._weights.values()],
        )
        imports = [helper.make_opsetid("", self.opset)]
        made_model = helper.make_model(
            graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="tensaurus.app.zoo"
        )
        return made_model

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
        """A convolution over all axes after the second; weights NAME.weight, NAME.bias.

        `padding` is one size, one for each axis, or the sizes before each axis and then those after each.
        `gain` is the output's mean square over the input's: 2 where a ReLU follows (He et al., 2015).
        """
        rank = len(x.shape) - 2
        window = _spread(kernel, rank)
        inner = x.channels // groups
        shape = (channels, inner, *window)
        weight = self.weight(f"{name}.weight", shape, std=(gain / (inner * prod(window))) ** 0.5)
        offset = self.weight(f"{name}.bias", (channels,), std=0.1) if bias else None
        return self.node(
            "Conv",
            x,
            weight,
            offset,
            name=name,
            kernel_shape=window,
            strides=_spread(stride, rank),
            pads=_pads(padding, rank),
            dilations=_spread(dilation, rank),
            group=groups,
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
        """A transposed convolution with weights NAME.weight [in, out, *kernel] and NAME.bias."""
        rank = len(x.shape) - 2
        window, steps = _spread(kernel, rank), _spread(stride, rank)
        met = x.channels * prod(window) / prod(steps)  # products that an output element sums, inside
        weight = self.weight(f"{name}.weight", (x.channels, channels, *window), std=(gain / met) ** 0.5)
        offset = self.weight(f"{name}.bias", (channels,), std=0.1) if bias else None
        return self.node(
            "ConvTranspose",
            x,
            weight,
            offset,
            name=name,
            kernel_shape=window,
            strides=steps,
            pads=_pads(padding, rank),
            output_padding=_spread(output_padding, rank),
        )

    def batch_norm(self, x: Value, name: str, *, epsilon: float = 1e-5, gain: float = 1.0) -> Value:
        """Batch normalization left unfolded; `gain` scales it, below 1 at the end of a residual branch."""
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
        """A convolution without bias, named `conv`, and the batch normalization `norm` of its output."""
        y = self.conv(x, conv, channels, kernel, stride=stride, padding=padding, groups=groups, gain=gain)
        return self.batch_norm(y, norm, epsilon=epsilon)

    def layer_norm(self, x: Value, name: str, *, epsilon: float = 1e-5) -> Value:
        """Layer normalization over the last axis."""
        size = (x.shape[-1],)
        scale = self.weight(f"{name}.weight", size, std=0.1, mean=1.0)
        return self.node(
            "LayerNormalization",
            x,
            scale,
            self.weight(f"{name}.bias", size, std=0.1),
            name=name,
            axis=-1,
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
        """The maximum over windows; `ceil` lets a last window reach over the edge."""
        rank = len(x.shape) - 2
        return self.node(
            "MaxPool",
            x,
            kernel_shape=_spread(kernel, rank),
            strides=_spread(stride, rank),
            pads=_pads(padding, rank),
            ceil_mode=int(ceil),
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
        """The mean over windows; `count_padding` counts the zeros of the padding, as torch does."""
        rank = len(x.shape) - 2
        return self.node(
            "AveragePool",
            x,
            kernel_shape=_spread(kernel, rank),
            strides=_spread(stride, rank),
            pads=_pads(padding, rank),
            count_include_pad=int(count_padding),
            ceil_mode=int(ceil),
        )

    def global_pool(self, x: Value) -> Value:
        """The mean over all axes after the second, flattened to [N, C]."""
        return self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)

    def linear(self, x: Value, name: str, features: int, *, bias: bool = True, gain: float = 1.0) -> Value:
        """x W^T + b with weights NAME.weight [features, in] and NAME.bias: a Gemm for a matrix x, as torch's
        exporter leaves it, else a MatMul by the transposed weight, which then is called NAME.weight.T."""
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

    def _fresh(self, word: str) -> str:
        self._count += 1
        return f"{word}_{self._count}"


def _spread(sizes: Sizes, rank: int) -> Shape:
    """One size for all axes, or one each."""
    return (sizes,) * rank if isinstance(sizes, int) else tuple(sizes)


def _pads(sizes: Sizes, rank: int) -> Shape:
    """The sizes before each axis, then those after each."""
    spread = _spread(sizes, rank)
    return spread if len(spread) == 2 * rank else spread * 2


def _small(value: Value) -> bool:
    """Whether its values may matter to shapes: integers do, weights do not."""
    return value.dtype == "int64" or prod(value.shape) <= 16


def _type(value: Value) -> onnx.TypeProto:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return helper.make_tensor_type_proto(code, value.shape)


def _value(name: str, kind: onnx.TypeProto) -> Value:
    dims = kind.tensor_type.shape.dim
    if not kind.tensor_type.HasField("shape") or not all(dim.HasField("dim_value") for dim in dims):
        raise ValueError(f"the shape of {name} cannot be inferred")
    dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    return Value(name, tuple(dim.dim_value for dim in dims), str(dtype))
