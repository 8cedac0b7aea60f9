"""Declared sizes and types, and integers that sizes are computed from."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, numpy_helper

from mutations.draw import SIZES, Draft, Inapplicable, mutation, read_array
from tensaurus.graph.onnx.onnx_frame import graphs_in

KIND = "sizes"


def _value(draft: Draft) -> Any:
    values = [v for g in graphs_in(draft.model.graph) for v in (*g.input, *g.output, *g.value_info)]
    return draft.one(v for v in values if v.type.HasField("tensor_type"))


@mutation(KIND)
def size(draft: Draft) -> str:
    value = _value(draft)
    dim = draft.one(value.type.tensor_type.shape.dim)
    dim.dim_value = draft.one(SIZES)
    return f"of {value.name}: {dim.dim_value}"


@mutation(KIND)
def zero(draft: Draft) -> str:
    """The same size 0 or 1 wherever a size occurs."""
    value = _value(draft)
    old = draft.one(value.type.tensor_type.shape.dim)
    new, label = draft.one((0, 0, 1)), (old.dim_value, old.dim_param)
    for graph in graphs_in(draft.model.graph):
        for other in (*graph.input, *graph.output, *graph.value_info):
            for dim in other.type.tensor_type.shape.dim:
                if (dim.dim_value, dim.dim_param) == label:
                    dim.dim_value = new
    return f"{label} is {new}"


@mutation(KIND)
def symbol(draft: Draft) -> str:
    value = _value(draft)
    dim = draft.one(value.type.tensor_type.shape.dim)
    dim.dim_param = draft.one(
        ("N", "C", "M", "", "?", "unk__3", "N+1", "2*N", "-1", "none", "N" * 300, "\n", "x")
    )
    return f"of {value.name}: {dim.dim_param[:9]!r}"


@mutation(KIND)
def rank(draft: Draft) -> str:
    value = _value(draft)
    shape = value.type.tensor_type.shape
    way = draft.random.randrange(5)
    if way == 0 and len(shape.dim):
        del shape.dim[draft.random.randrange(len(shape.dim))]
    elif way == 1:
        shape.dim.add(dim_value=draft.one((1, 2, 0)))
    elif way == 2:
        value.type.tensor_type.ClearField("shape")
    elif way == 3:
        del shape.dim[:]
    else:
        for _ in range(draft.one((20, 70, 3000))):
            shape.dim.add(dim_value=1)
    return f"of {value.name}: {('one less', 'one more', 'unknown', 'scalar', 'many')[way]}"


@mutation(KIND)
def element_type(draft: Draft) -> str:
    value = _value(draft)
    kinds = [*TensorProto.DataType.values(), 0, 99]
    new = draft.one(kinds)
    if draft.random.random() < 0.4:  # everywhere: the model may well be valid
        old = value.type.tensor_type.elem_type
        for graph in graphs_in(draft.model.graph):
            for other in (*graph.input, *graph.output, *graph.value_info):
                if other.type.tensor_type.elem_type == old:
                    other.type.tensor_type.elem_type = new
    value.type.tensor_type.elem_type = new
    return f"of {value.name}: {new}"


@mutation(KIND)
def container(draft: Draft) -> str:
    value = _value(draft)
    old = TypeProto()
    old.CopyFrom(value.type)
    way = draft.random.randrange(5)
    if way == 0:
        value.type.sequence_type.elem_type.CopyFrom(old)
    elif way == 1:
        value.type.optional_type.elem_type.CopyFrom(old)
    elif way == 2:
        value.type.map_type.key_type = TensorProto.INT64
        value.type.map_type.value_type.CopyFrom(old)
    elif way == 3:
        value.type.sparse_tensor_type.elem_type = old.tensor_type.elem_type
        value.type.sparse_tensor_type.shape.CopyFrom(old.tensor_type.shape)
    else:
        value.ClearField("type")
    return f"of {value.name}: {('sequence', 'optional', 'map', 'sparse', 'none')[way]}"


@mutation(KIND)
def stated(draft: Draft) -> str:
    """The type of a value within the graph, wrong most of the time."""
    graph = draft.graph()
    name = draft.one(name for node in graph.node for name in node.output if name)
    info = graph.value_info.add(name=name)
    info.type.tensor_type.elem_type = draft.one((1, 1, 1, 7, 10, 9))
    for _ in range(draft.random.randrange(5)):
        info.type.tensor_type.shape.dim.add(dim_value=draft.one((1, 2, 3, 4, 8, *SIZES)))
    return f"of {name}"


@mutation(KIND)
def computed(draft: Draft) -> str:
    """An integer constant that a shape, a slice or a count may be computed from."""
    integers = [
        t
        for g in graphs_in(draft.model.graph)
        for t in g.initializer
        if t.data_type == TensorProto.INT64 and t.HasField("raw_data")
    ]
    tensor = draft.one(integers)
    array = read_array(tensor)
    if not array.size:
        raise Inapplicable
    place = draft.random.randrange(array.size)
    array.reshape(-1)[place] = draft.one(SIZES)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name} is {array.tolist()}"


@mutation(KIND)
def more_computed(draft: Draft) -> str:
    """The same constant with other elements, and as many as one likes."""
    integers = [
        t for g in graphs_in(draft.model.graph) for t in g.initializer if t.data_type == TensorProto.INT64
    ]
    tensor = draft.one(integers)
    length = draft.one((0, 1, 2, 3, 5, 200))
    array = np.array([draft.one((0, 1, 2, -1, *SIZES)) for _ in range(length)], np.int64)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name} is {array.tolist()[:6]}"


@mutation(KIND)
def expanded(draft: Draft) -> str:
    """An edge that becomes enormous, and small again."""
    place, which = draft.edge()
    node = draft.model.graph.node[place]
    big, out = draft.fresh("big"), draft.fresh("small")
    from mutations.draw import call

    count = draft.one((2**20, 2**31, 2**40, 2**62, 0))
    shape = draft.constant(np.array([count, *[1] * draft.one((1, 2, 4))]))
    first = [call("Expand", [node.input[which], shape], [big])]
    name = node.input[which]
    node.input[which] = out
    first.append(
        draft.one(
            (
                call("ReduceMax", [big], [out], keepdims=0),
                call("Slice", [big, draft.constant([0]), draft.constant([1])], [out]),
                call("Identity", [big], [out]),
            )
        )
    )
    draft.insert(place, *first)
    return f"{name} by {count}"
