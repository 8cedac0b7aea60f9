"""Makes a piece of a program a program of its own, which `operator_times` exports and measures.

The program holds several copies of the piece, so that each takes as long as in its own program.  Two copies
of MatMul(x, constant) become y0 = MatMul(x0, random w) and y0_1 = MatMul(x0, other random w).
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
from tensaurus.runtimes.price.operation_counts import elements, number_of, operations

__all__ = ["copies_to_measure", "round_weight_bytes", "standalone_model"]

UNCACHED_BYTES = 1 << 26  # a model with this many bytes of weights reads them from memory in every run
SMALL_WEIGHT_BYTES = 1 << 12  # an operator with fewer bytes of weights is measured like one without weights
# Inputs and outputs of an operator are taken to be in the cache, as in a program, if they are below this.
HOT_BYTES = 1 << 19
MAX_COPIES = 64  # of one operator in a measured model
MAX_OPERATIONS = 100_000_000  # about, of all copies in a measured model together
# At most this many random numbers are drawn; in larger tensors they repeat, which costs an operator no time.
RANDOM_NUMBERS = 1 << 20


def round_weight_bytes(model_weight_bytes: int) -> int:
    """Round the bytes of a model's weights, up to UNCACHED_BYTES, to 2^n or 1.5 * 2^n.

    Models with similar numbers of bytes thus share measurements.
    """
    steps = (number << power for power in range(19, 26) for number in (2, 3))
    return min(steps, key=lambda step: abs(step - min(model_weight_bytes, UNCACHED_BYTES)))


def copies_to_measure(piece: Piece, model_weight_bytes: int) -> int:
    """Return how many copies of a piece to run in one model, so that each takes as long as in its program.

    A program reads all its weights between two uses of one, so a weight comes from the cache level into which
    all of them fit; and the runtime is called once for many operators, not for each.  A piece with much
    arithmetic needs fewer copies, as its weights hardly count.
    """
    # bytes as of float32
    weight_bytes = 4 * sum(elements(leaf) for leaf in piece.leaves if leaf.static)
    passed_bytes = 4 * sum(elements(node) for node in (*piece.leaves, piece.root) if not node.static)
    if weight_bytes >= SMALL_WEIGHT_BYTES:
        wanted = model_weight_bytes // weight_bytes
    else:  # as many copies as have their inputs and outputs in the cache together
        wanted = HOT_BYTES // max(1, passed_bytes)
    work = sum(map(operations, piece.inner))
    return max(1, min(wanted, MAX_COPIES, MAX_OPERATIONS // max(work, 1)))


def standalone_model(
    piece: Piece, opset: int, copies: int = 1
) -> tuple[Program, dict[str, np.ndarray[Any, Any]]]:
    """Return a program of the piece alone, and inputs for it.

    Weights are constants, as in the whole program: of one copy the program's own, of several random ones with
    as many subnormal numbers (`Piece.text` says how many).  `copies` of the piece have different weights and
    the same inputs; without weights they have different inputs, as a runtime would compute equal ones once.
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
        # a leaf becomes itself (a constant), random weights, or an input of the program
        for place, leaf in enumerate(piece.leaves):
            kind = leaf.tensor
            shape = tuple(number_of(n) for n in kind.shape)
            name = f"x{place}" if has_own_weights or not copy else f"x{place}_{copy}"
            if leaf.op is CONSTANT and (prod(shape) == 1 or copies == 1):
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
