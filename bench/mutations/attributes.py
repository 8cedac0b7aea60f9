"""Attributes: left out, extreme, of another type."""

from __future__ import annotations

from typing import Any

from onnx import AttributeProto, NodeProto, TensorProto, helper

from mutations.draw import NUMBERS, SIZES, Draft, mutation

KIND = "attributes"
NAMES = (
    "axis", "axes", "pads", "strides", "dilations", "group", "kernel_shape", "to", "keepdims", "perm",
    "epsilon", "alpha", "beta", "auto_pad", "ceil_mode", "num_outputs", "transA", "transB", "value",
    "value_ints", "mode", "output_padding", "output_shape", "count_include_pad", "exclusive", "reverse",
    "batch_dims", "allowzero", "training_mode", "noop_with_empty_axes", "largest", "fmod", "direction",
    "blocksize", "shape", "seed", "start", "end", "stash_type", "block_size", "saturate", "ratio",
    "scales", "broadcast", "num_scan_inputs", "body",
)  # fmt: skip
INTEGERS = (*SIZES, -2, -3, -4, 4, 5, 100)
TEXTS = ("", "SAME_UPPER", "VALID", "NOTSET", "nearest", "LEFT", "sideways", "é", "x" * 10**5)


def _owner(draft: Draft) -> NodeProto:
    found: NodeProto = draft.one(n for nodes in draft.node_lists() for n in nodes if len(n.attribute))
    return found


def _attribute(draft: Draft, *types: Any) -> tuple[NodeProto, AttributeProto]:
    found: tuple[NodeProto, AttributeProto] = draft.one(
        (n, a)
        for nodes in draft.node_lists()
        for n in nodes
        for a in n.attribute
        if not types or a.type in types
    )
    return found


def _value(draft: Draft) -> Any:
    way = draft.random.randrange(6)
    length = draft.one((0, 1, 2, 3, 4, 8))
    if way == 0:
        return draft.one(INTEGERS)
    if way == 1:
        return draft.one(NUMBERS)
    if way == 2:
        return draft.one(TEXTS)
    if way == 3:
        return [draft.one((0, 1, 2, -1, *INTEGERS)) for _ in range(length + 1)]
    if way == 4:
        return [draft.one(NUMBERS) for _ in range(length + 1)]
    return helper.make_tensor("value", TensorProto.FLOAT, [0], [])


@mutation(KIND)
def drop(draft: Draft) -> str:
    node = _owner(draft)
    place = draft.random.randrange(len(node.attribute))
    said = f"{node.op_type}.{node.attribute[place].name}"
    del node.attribute[place]
    return said


@mutation(KIND)
def integer(draft: Draft) -> str:
    node, attribute = _attribute(draft, AttributeProto.INT)
    attribute.i = draft.one(INTEGERS)
    return f"{node.op_type}.{attribute.name} is {attribute.i}"


@mutation(KIND)
def integers(draft: Draft) -> str:
    node, attribute = _attribute(draft, AttributeProto.INTS)
    values = list(attribute.ints)
    way = draft.random.randrange(6)
    if way <= 2 and values:
        values[draft.random.randrange(len(values))] = draft.one(INTEGERS)
    elif way == 3:
        values = values[: draft.random.randrange(len(values) + 1)]
    elif way == 4:
        values = values * 2
    else:
        values = [draft.one((0, 1, 2))] * draft.one((7, 64, 10**5))
    attribute.ints[:] = values
    return f"{node.op_type}.{attribute.name} is {values[:8]}{'...' * (len(values) > 8)}"


@mutation(KIND)
def number(draft: Draft) -> str:
    node, attribute = _attribute(draft, AttributeProto.FLOAT)
    attribute.f = draft.one(NUMBERS)
    return f"{node.op_type}.{attribute.name} is {attribute.f}"


@mutation(KIND)
def text(draft: Draft) -> str:
    node, attribute = _attribute(draft, AttributeProto.STRING)
    attribute.s = draft.one(
        (b"", b"\xff\xfe", b"SAME_LOWER", b"LEFT", b"RIGHT", b"nearest", b"linear", b"x" * 999)
    )
    return f"{node.op_type}.{attribute.name}"


@mutation(KIND)
def retyped(draft: Draft) -> str:
    """The same name with a value of another type."""
    node, attribute = _attribute(draft)
    name = attribute.name
    attribute.CopyFrom(helper.make_attribute(name, _value(draft)))
    return f"{node.op_type}.{name}"


@mutation(KIND)
def mistyped(draft: Draft) -> str:
    """A type that is not that of the field which is set."""
    node, attribute = _attribute(draft)
    attribute.type = draft.one([*AttributeProto.AttributeType.values()])
    return f"{node.op_type}.{attribute.name}"


@mutation(KIND)
def added(draft: Draft) -> str:
    node = draft.node()
    name = draft.one(NAMES)
    node.attribute.append(helper.make_attribute(name, _value(draft)))
    return f"{node.op_type}.{name}"


@mutation(KIND)
def twice(draft: Draft) -> str:
    node = _owner(draft)
    node.attribute.add().CopyFrom(draft.one(node.attribute))
    return node.op_type


@mutation(KIND)
def renamed(draft: Draft) -> str:
    node, attribute = _attribute(draft)
    said = f"{node.op_type}.{attribute.name}"
    attribute.name = draft.one((*NAMES, "", "é"))
    return f"{said} is {attribute.name}"


@mutation(KIND)
def referring(draft: Draft) -> str:
    """An attribute that refers to one of a function, where there is none."""
    node, attribute = _attribute(draft)
    attribute.ref_attr_name = draft.one(("slope", "nowhere"))
    return f"{node.op_type}.{attribute.name}"


@mutation(KIND)
def tensor(draft: Draft) -> str:
    node, attribute = _attribute(draft, AttributeProto.TENSOR)
    way = draft.random.randrange(3)
    if way == 0:
        attribute.t.ClearField("raw_data")
    elif way == 1:
        attribute.t.dims[:] = [draft.one(SIZES) for _ in range(draft.random.randrange(3))]
    else:
        attribute.t.CopyFrom(helper.make_tensor("v", TensorProto.INT64, [2], [1, 2]))
    return f"{node.op_type}.{attribute.name}"
