"""Makes a piece of a program a program of its own, which `operator_times` exports and measures.

Two copies of MatMul(x, constant) become y0 = MatMul(x0, random w) and y0_1 = MatMul(x0, other random w).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx

from tensaurus.graph.ir.node import CONSTANT, Node, constant, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.subnormal import float_limits, subnormal_rarity
from tensaurus.graph.onnx.onnx_frame import Frame
from tensaurus.ops import TensorType
from tensaurus.ops.element_type import REAL_TYPES
from tensaurus.runtimes.price.operation_counts import elements, number_of

__all__ = ["standalone_model"]

# At most this many random numbers are drawn; in larger tensors they repeat, which costs an operator no time.
RANDOM_NUMBERS = 1 << 20


def standalone_model(
    piece: Piece, opset: int, copies: int = 1
) -> tuple[Program, dict[str, np.ndarray[Any, Any]]]:
    """Return a program of the piece alone, and inputs for it.

    Weights are constants, as in the whole program: random ones with as many subnormal numbers (`Piece.text`
    says how many).  `copies` of the piece have different weights and the same inputs; without weights they
    have different inputs, as a runtime would compute equal ones once.
    """
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    has_own_weights = any(  # integers do not count: all are 0, so that copies would be one node
        leaf.static and elements(leaf) > 1 and leaf.tensor.dtype in REAL_TYPES for leaf in piece.leaves
    )
    inputs: dict[str, Node] = {}
    outputs: list[tuple[str, Node]] = []
    for copy in range(copies):
        new: dict[Node, Node] = {}
        # a leaf becomes itself (a scalar constant), random weights, or an input of the program
        for place, leaf in enumerate(piece.leaves):
            kind = leaf.tensor
            shape = tuple(number_of(n) for n in kind.shape)
            name = f"x{place}" if has_own_weights or not copy else f"x{place}_{copy}"
            if leaf.op is CONSTANT and prod(shape) == 1:
                new[leaf] = leaf
            elif leaf.static:
                new[leaf] = constant(_weights(leaf, shape, rng))
            elif name in inputs:
                new[leaf] = inputs[name]
            else:
                new[leaf] = inputs[name] = source(name, TensorType(kind.dtype, shape))
                feeds[name] = _random(kind.dtype, shape, rng)
        made = piece.with_leaves(new)
        outputs += [(f"y{k}_{copy}" if copy else f"y{k}", made[k]) for k in range(len(made.types))]
    shell = onnx.ModelProto(ir_version=10)
    shell.opset_import.add(domain="", version=opset)
    shell.graph.name = "alone"
    frame = Frame(
        shell,
        tuple(_value(name, n.tensor) for name, n in inputs.items()),
        tuple(_value(name, n.tensor) for name, n in outputs),
    )
    return Program(tuple(inputs.values()), tuple(outputs), frame=frame), feeds


def _value(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    sizes = [n if isinstance(n, int) else None for n in kind.shape]
    return onnx.helper.make_tensor_value_info(name, code, sizes)


def _weights(leaf: Node, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return random weights, of which one in 2**rarity is subnormal, as in the leaf: those take longer."""
    made = _random(leaf.tensor.dtype, shape, rng)
    rarity = subnormal_rarity(leaf.attribute("data")) if leaf.op is CONSTANT else -1
    if rarity < 0:
        return made
    tiny = np.asarray(float_limits(leaf.tensor.dtype).smallest_normal, made.dtype)
    size = min(made.size, RANDOM_NUMBERS)
    chosen = np.resize(rng.random(size) < 2.0**-rarity, shape)
    return np.where(chosen, np.resize(tiny * rng.uniform(0.1, 0.9, size).astype(made.dtype), shape), made)


def _random(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return np.zeros(shape, kind)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    size = prod(shape)
    return np.resize(rng.standard_normal(min(size, RANDOM_NUMBERS)).astype(kind), shape)
