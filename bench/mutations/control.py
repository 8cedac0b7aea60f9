"""Bodies: loops without end, branches that differ, captured names, nesting."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from mutations.draw import Draft, call, mutation

KIND = "control flow"
TURNS = (0, 1, -1, 3, 1000, 10**6, 10**9, 2**31, 2**40, 2**62, -(2**63))
UNARY = ("Identity", "Identity", "Relu", "Abs", "Neg")


def _typeless(*names: str) -> list[object]:
    return [helper.make_empty_tensor_value_info(name) for name in names]


def _scalar(name: str, kind: int) -> object:
    return helper.make_tensor_value_info(name, kind, [])


def _true(name: str, value: bool = True) -> NodeProto:
    return call("Constant", [], [name], value=numpy_helper.from_array(np.array(value), "v"))


def _on_edge(draft: Draft) -> tuple[int, str, str]:
    """Place, what is read there, and the name that is read from now on."""
    place, which = draft.edge()
    node = draft.model.graph.node[place]
    read, out = node.input[which], draft.fresh("bodied")
    node.input[which] = out
    return place, str(read), out


def _bodied(draft: Draft) -> tuple[NodeProto, AttributeProto]:
    found: tuple[NodeProto, AttributeProto] = draft.one(
        (n, a)
        for nodes in draft.node_lists()
        for n in nodes
        for a in n.attribute
        if a.type == AttributeProto.GRAPH
    )
    return found


def _turn(inner: list[NodeProto], read: str) -> GraphProto:
    """The body of a loop that hands on `read`."""
    inputs = [_scalar("turn.i", TensorProto.INT64), _scalar("turn.c", TensorProto.BOOL), *_typeless("turn.v")]
    nodes = [call("Identity", ["turn.c"], ["turn.go"]), *inner, call("Identity", [read], ["turn.r"])]
    outputs = [_scalar("turn.go", TensorProto.BOOL), *_typeless("turn.r")]
    return helper.make_graph(nodes, "turn", inputs, outputs)


@mutation(KIND)
def loop(draft: Draft) -> str:
    """A loop that hands a value on, for as many turns as one likes."""
    place, read, out = _on_edge(draft)
    turns = draft.one(TURNS)
    limit = draft.constant(np.int64(turns)) if draft.random.random() < 0.8 else ""
    condition = draft.constant(np.array(draft.random.random() < 0.9)) if draft.random.random() < 0.6 else ""
    inner = [call(draft.one(UNARY), ["turn.v"], ["turn.m"])]
    draft.insert(place, call("Loop", [limit, condition, read], [out], body=_turn(inner, "turn.m")))
    return f"{turns if limit else 'without a limit'} {'while' if condition else 'without a condition'}"


@mutation(KIND)
def growing_loop(draft: Draft) -> str:
    """Each turn makes the value larger, or keeps it."""
    place, read, out = _on_edge(draft)
    turns = draft.one((3, 40, 1000, 10**9))
    limit = draft.constant(np.int64(turns))
    scanned = draft.random.random() < 0.5
    inner = [call("Concat", ["turn.v", "turn.v"], ["turn.m"], axis=0)]
    body = _turn([] if scanned else inner, "turn.v" if scanned else "turn.m")
    outputs = [out]
    if scanned:
        body.node.append(call("Identity", ["turn.v"], ["turn.s"]))
        body.output.extend(_typeless("turn.s"))
        outputs.append(draft.fresh("all"))
    draft.insert(place, call("Loop", [limit, "", read], outputs, body=body))
    return f"{turns} {'scanned' if scanned else 'doubled'}"


@mutation(KIND)
def nested_loops(draft: Draft) -> str:
    place, read, out = _on_edge(draft)
    depth, turns = draft.one(((2, 2), (3, 100), (5, 1000), (15, 2), (30, 1)))
    limit = draft.constant(np.int64(turns))
    body = _turn([], "turn.v")
    for _ in range(depth - 1):
        body = _turn([call("Loop", [limit, "", "turn.v"], ["turn.m"], body=body)], "turn.m")
    if draft.random.random() < 0.7:  # every name once
        _renamed(body, 0)
    draft.insert(place, call("Loop", [limit, "", read], [out], body=body))
    return f"{depth} of {turns} turns"


def _renamed(body: GraphProto, depth: int) -> None:
    def new(name: str) -> str:
        return f"{name}.{depth}" if name.startswith("turn.") else name

    for value in (*body.input, *body.output):
        value.name = new(value.name)
    for node in body.node:
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _renamed(attribute.g, depth + 1)


@mutation(KIND)
def choice(draft: Draft) -> str:
    """An If whose branches may differ in type or shape."""
    place, read, out = _on_edge(draft)
    name = draft.constant(np.array(draft.random.random() < 0.5).reshape(draft.one(((), (1,), (1, 1)))))
    if draft.random.random() < 0.6:  # a condition that is known at run time alone
        name = _unknown_condition(draft, place, read)
        place += 3
    other = draft.one(
        (
            [call("Identity", [read], ["else.r"])],
            [call("Relu", [read], ["else.r"])],
            [call("Shape", [read], ["else.r"])],
            [call("Cast", [read], ["else.r"], to=draft.one((1, 7, 9, 10, 11)))],
            [call("Unsqueeze", [read, draft.constant([0])], ["else.r"])],
            [call("SequenceConstruct", [read], ["else.r"])],
            [call("Identity", [draft.one(draft.names())], ["else.r"])],
            [],
        )
    )
    then = helper.make_graph([call("Identity", [read], ["then.r"])], "yes", [], _typeless("then.r"))
    alternative = helper.make_graph(other, "no", [], _typeless("else.r" if other else read))
    draft.insert(place, call("If", [name], [out], then_branch=then, else_branch=alternative))
    return f"{[n.op_type for n in other]}"


def _unknown_condition(draft: Draft, place: int, read: str) -> str:
    size, flag, first = draft.fresh("size"), draft.fresh("flag"), draft.fresh("first")
    draft.insert(
        place,
        call("Cast", [read], [size], to=TensorProto.FLOAT),
        call("ReduceMax", [size], [first], keepdims=0),
        call("Greater", [first, draft.constant(np.float32(0))], [flag]),
    )
    return flag


@mutation(KIND)
def deep_choice(draft: Draft) -> str:
    place, read, out = _on_edge(draft)
    depth = draft.one((3, 10, 28))
    name = draft.constant(np.array(True))
    node = call("Identity", [read], [f"deep{depth}"])
    for k in range(depth - 1, -1, -1):
        side = helper.make_graph([node], "side", [], _typeless(f"deep{k + 1}"))
        other = helper.make_graph(
            [call("Identity", [read], [f"other{k}"])], "other", [], _typeless(f"other{k}")
        )
        node = call("If", [name], [f"deep{k}" if k else out], then_branch=side, else_branch=other)
    draft.insert(place, node)
    return f"{depth}"


@mutation(KIND)
def trip_count(draft: Draft) -> str:
    """Another number of turns, and another condition, for a loop that is there."""
    node = draft.one(n for nodes in draft.node_lists() for n in nodes if n.op_type == "Loop")
    turns = draft.one(TURNS)
    node.input[0] = draft.one((draft.constant(np.int64(turns)), "", draft.constant(np.array([turns, 1]))))
    if draft.random.random() < 0.5:
        node.input[1] = draft.one(("", draft.constant(np.array(True)), draft.constant(np.int64(1))))
    return f"{turns}"


@mutation(KIND)
def body_interface(draft: Draft) -> str:
    """Inputs and outputs of a body: more, fewer, others."""
    node, attribute = _bodied(draft)
    graph = attribute.g
    way = draft.random.randrange(7)
    if way == 0:
        graph.output.add(name=draft.one(draft.names()))
    elif way == 1 and len(graph.output):
        del graph.output[-1]
    elif way == 2 and len(graph.input):
        del graph.input[-1]
    elif way == 3:
        graph.input.add(name=draft.one(draft.names()))
    elif way == 4 and len(graph.output):
        draft.one(graph.output).name = draft.one((*draft.names(), "nowhere", ""))
    elif way == 5 and len(graph.output):
        draft.one(graph.output).type.tensor_type.elem_type = draft.one((1, 7, 9, 99))
    elif len(graph.output) > 1:
        one, other = graph.output[0].name, graph.output[1].name
        graph.output[0].name, graph.output[1].name = other, one
    return f"of {node.op_type} way {way}"


@mutation(KIND)
def captured(draft: Draft) -> str:
    """A node in a body reads what is around it, or comes after it."""
    _, attribute = _bodied(draft)
    node = draft.one(n for n in attribute.g.node if len(n.input))
    outside = [name for n in draft.model.graph.node for name in n.output if name]
    node.input[draft.random.randrange(len(node.input))] = draft.one((*outside, "nowhere"))
    return node.op_type


@mutation(KIND)
def shadowing(draft: Draft) -> str:
    """A body defines a name that is defined around it."""
    _, attribute = _bodied(draft)
    node = draft.one(attribute.g.node)
    old, new = draft.one(node.output), draft.one(draft.names())
    for other in attribute.g.node:
        other.input[:] = [new if name == old else name for name in other.input]
        other.output[:] = [new if name == old else name for name in other.output]
    for value in attribute.g.output:
        value.name = new if value.name == old else value.name
    return f"{old} is {new}"


@mutation(KIND)
def branches(draft: Draft) -> str:
    """Bodies swapped, left out, doubled, or of the wrong name."""
    node, attribute = _bodied(draft)
    way = draft.random.randrange(4)
    if way == 0:
        kept = [a for a in node.attribute if a.name != attribute.name]
        copies = [_attribute_copy(a) for a in kept]
        del node.attribute[:]
        node.attribute.extend(copies)
    elif way == 1:
        other = draft.one(a for a in node.attribute if a.type == AttributeProto.GRAPH)
        other.g.CopyFrom(_attribute_copy(attribute).g)
    elif way == 2:
        attribute.type = AttributeProto.GRAPHS
        attribute.graphs.add().CopyFrom(attribute.g)
        attribute.ClearField("g")
    else:
        attribute.name = draft.one(("body", "then_branch", "else_branch", "other"))
    return f"of {node.op_type} way {way}"


def _attribute_copy(attribute: AttributeProto) -> AttributeProto:
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    return copy


@mutation(KIND)
def weight_in_body(draft: Draft) -> str:
    """An initializer moves into a body, or is an input of it as well."""
    _, attribute = _bodied(draft)
    tensor = draft.one(draft.model.graph.initializer)
    attribute.g.initializer.add().CopyFrom(tensor)
    if draft.random.random() < 0.3:
        attribute.g.input.add(name=tensor.name)
    return str(tensor.name)


@mutation(KIND)
def scan(draft: Draft) -> str:
    """A Scan over an edge, with the numbers and axes that one likes."""
    place, read, out = _on_edge(draft)
    numbers = {"num_scan_inputs": draft.one((1, 1, 1, 0, 2, -1, 2**40))}
    for name in ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"):
        if draft.random.random() < 0.3:
            numbers[name] = [draft.one((0, 0, 1, -1, 5, 2**62))]
    nodes = [call(draft.one(UNARY), ["part"], ["made"])]
    body = helper.make_graph(nodes, "each", _typeless("part"), _typeless("made"))
    draft.insert(place, call("Scan", [read], [out], body=body, **numbers))
    return f"{numbers}"
