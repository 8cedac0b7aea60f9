"""Makes models with pinned scores, to compare models whose outputs depend on the order of scores.

    s = f(x)   i = TopK(s)   y = g(x, i)        the model
    s = f(x)   i = TopK(p)   y = g(x, i)        pinned: p is an input, s an output

Two scores that differ by less than a rounding (a near tie) may change places, and then indices, and elements
that these select, change by any amount.  Two pinned models are compared by the usual measure in two parts:
the scores, and the outputs from equal scores.  By induction over the ordering operators, from inputs to
outputs, models that pass both parts are equal except for the order of near ties.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.onnx_frame import bodies_of, graphs_in, initializer_names, light_copy
from tensaurus.graph.onnx.shape_inference import infer_shapes
from tensaurus.ops.abrupt_operators import SCORE_INPUTS
from tensaurus.ops.special_nodes import ONNX_DOMAINS, copy_node
from tensaurus.runtimes.backends import Array
from tensaurus.system.errors import TensaurusError

__all__ = ["PinnedPair", "pin_scores"]

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class PinnedPair:
    """Two models whose ordering operators read scores from added inputs.

    original, candidate  the pinned models
    scores               the original with its scores as the only outputs
    inputs               names and element types of the added inputs, in the order of the outputs of `scores`
    operators            the ordering operators, in words
    dependent_outputs    outputs of the models that depend on an order
    """

    original: ModelProto
    candidate: ModelProto
    scores: ModelProto
    inputs: Mapping[str, np.dtype[np.generic]]
    operators: tuple[str, ...]
    dependent_outputs: frozenset[str]

    def pinned_inputs(self, scores: Sequence[Array]) -> dict[str, Array]:
        """Return the added inputs that hold these scores, the outputs of the model `scores`."""
        with np.errstate(all="ignore"):
            pairs = zip(self.inputs.items(), scores, strict=True)
            return {name: np.asarray(array).astype(dtype) for (name, dtype), array in pairs}


def pin_scores(original: ModelProto, candidate: ModelProto) -> PinnedPair | None:
    """Return both models pinned; None where neither orders scores, or they do not order the same ones."""
    if not any(node.op_type in SCORE_INPUTS for graph in graphs_in(original.graph) for node in graph.node):
        return None
    try:
        one, other = inline_functions(original), inline_functions(candidate)
    except TensaurusError:
        return None
    pairs = _pair_nodes(_ordering_nodes(one), _ordering_nodes(other))
    if not pairs:
        return None
    types = {value.name: value.type.tensor_type.elem_type for value in _typed_values(one)}
    reads = [_ScoreRead(a, b, index) for a, b in pairs for index in _score_inputs(one, a)]
    kinds = [types.get(read.score_name, 0) for read in reads]
    if not reads or not all(kind in FLOATS for kind in kinds):
        return None
    # names for the added inputs ("pinned") and outputs ("scores_of") that no value of either model has
    used = {name for model in (one, other) for name in _used_names(model)}
    inputs, outputs = (
        [_unused_name(f"{word}_{read.original.output[0]}_{read.input_index}", used) for read in reads]
        for word in ("pinned", "scores_of")
    )
    original_reads = [(read.original.output[0], read.input_index) for read in reads]
    candidate_reads = [(read.candidate.output[0], read.input_index) for read in reads]
    pinned_original = _pin_model(one, original_reads, inputs, outputs, kinds)
    pinned_candidate = _pin_model(other, candidate_reads, inputs, outputs, kinds)
    scores = ModelProto()  # the original itself, with its scores as the only outputs
    scores.CopyFrom(one)
    del scores.graph.output[:]
    for read, name, kind in zip(reads, outputs, kinds, strict=True):
        scores.graph.node.append(copy_node(read.score_name, name))
        scores.graph.output.append(_tensor_info(name, kind))
    dtypes = (np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for kind in kinds)
    nodes = [read.original for read in reads]
    return PinnedPair(
        original=pinned_original,
        candidate=pinned_candidate,
        scores=scores,
        inputs=dict(zip(inputs, dtypes, strict=True)),
        operators=tuple(dict.fromkeys(f"{node.op_type} {node.name or node.output[0]}" for node in nodes)),
        dependent_outputs=_dependent_outputs(one, [original for original, _ in pairs]),
    )


class _ScoreRead(NamedTuple):
    """A place where scores are read: an ordering node, its partner in the other model, and their input."""

    original: NodeProto
    candidate: NodeProto
    input_index: int

    @property
    def score_name(self) -> str:
        """The tensor of scores in the original."""
        return str(self.original.input[self.input_index])


def _pin_model(
    model: ModelProto,
    scores_read: Sequence[tuple[str, int]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    kinds: Sequence[int],
) -> ModelProto:
    """Return the model with its scores as outputs, and with added inputs in the place of scores.

    scores_read  where scores are read: the first output of the ordering node, and the index of its input
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    nodes = {name: node for node in copy.graph.node for name in node.output if name}
    for (key, index), name, output, kind in zip(scores_read, inputs, outputs, kinds, strict=True):
        node = nodes[key]
        copy.graph.node.append(copy_node(node.input[index], output))
        node.input[index] = name
        copy.graph.input.append(_tensor_info(name, kind))
        copy.graph.output.append(_tensor_info(output, kind))
    return copy


def _tensor_info(name: str, kind: int) -> ValueInfoProto:
    """Return the description of a tensor of unknown shape."""
    value = ValueInfoProto(name=name)
    value.type.tensor_type.elem_type = kind
    return value


def _typed_values(model: ModelProto) -> Iterator[ValueInfoProto]:
    graph = infer_shapes(light_copy(model)).graph
    yield from (*graph.value_info, *graph.input, *graph.output)


def _ordering_nodes(model: ModelProto) -> list[NodeProto]:
    """Return the nodes that order computed scores, in the order of the graph."""
    nodes = [n for n in model.graph.node if n.op_type in SCORE_INPUTS and n.domain in ONNX_DOMAINS]
    return [node for node in nodes if _score_inputs(model, node)]


def _score_inputs(model: ModelProto, node: NodeProto) -> list[int]:
    """Return the indices of a node's inputs that are computed scores: no model inputs, no constants."""
    not_computed = initializer_names(model.graph) | {value.name for value in model.graph.input}
    read = [index for index in SCORE_INPUTS[node.op_type] if index < len(node.input)]
    return [index for index in read if node.input[index] and node.input[index] not in not_computed]


def _pair_nodes(one: Sequence[NodeProto], other: Sequence[NodeProto]) -> list[tuple[NodeProto, NodeProto]]:
    """Pair corresponding nodes of two models, by name or else by order; [] where a node has no partner."""
    if len(one) != len(other):
        return []
    named = {node.output[0]: node for node in other}
    if all(a.output[0] in named for a in one):
        pairs = [(a, named[a.output[0]]) for a in one]
    else:
        pairs = list(zip(one, other, strict=True))
    return pairs if all(_operator_and_attributes(a) == _operator_and_attributes(b) for a, b in pairs) else []


def _operator_and_attributes(node: NodeProto) -> tuple[str, list[bytes]]:
    return node.op_type, sorted(a.SerializeToString(deterministic=True) for a in node.attribute)


def _dependent_outputs(model: ModelProto, nodes: Sequence[NodeProto]) -> frozenset[str]:
    """Return the outputs of the model that depend on these nodes."""
    reached = {name for node in nodes for name in node.output if name}
    for node in model.graph.node:
        # a body (of an If, Loop or Scan) may read values of the graph around it, or return them as they are
        read = {
            *node.input,
            *(n for body in bodies_of(node) for g in graphs_in(body) for n in _read_names(g.node)),
        }
        read |= {v.name for body in bodies_of(node) for g in graphs_in(body) for v in g.output}
        if read & reached:
            reached.update(name for name in node.output if name)
    return frozenset(value.name for value in model.graph.output if value.name in reached)


def _used_names(model: ModelProto) -> Iterator[str]:
    for graph in graphs_in(model.graph):
        for node in graph.node:
            yield from (*node.input, *node.output)
        yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))


def _unused_name(name: str, used: Container[str]) -> str:
    return next(n for k in count() if (n := f"{name}_{k}" if k else name) not in used)


def _read_names(nodes: Sequence[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from node.input
