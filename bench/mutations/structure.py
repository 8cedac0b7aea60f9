"""Nodes and names: what computes what."""

from __future__ import annotations

from mutations.draw import Draft, call, copied, mutation

KIND = "structure"


@mutation(KIND)
def drop(draft: Draft) -> str:
    nodes = draft.nodes()
    place = draft.one(range(len(nodes)))
    said = nodes[place].op_type
    del nodes[place]
    return said


@mutation(KIND)
def duplicate(draft: Draft) -> str:
    nodes = draft.nodes()
    copy = copied(draft.one(nodes))
    if draft.random.random() < 0.5:
        copy.output[:] = [name and draft.fresh(name) for name in copy.output]
    nodes.append(copy)
    return copy.op_type


@mutation(KIND)
def swap(draft: Draft) -> str:
    nodes = draft.nodes()
    one, other = draft.one(range(len(nodes))), draft.one(range(len(nodes)))
    copies = [copied(node) for node in nodes]
    copies[one], copies[other] = copies[other], copies[one]
    del nodes[:]
    nodes.extend(copies)
    return f"{one} {other}"


@mutation(KIND)
def shuffle(draft: Draft) -> str:
    nodes = draft.nodes()
    copies = [copied(node) for node in nodes]
    draft.random.shuffle(copies)
    del nodes[:]
    nodes.extend(copies)
    return ""


@mutation(KIND)
def exchange(draft: Draft) -> str:
    """Another operator on the same inputs."""
    node = draft.node()
    said = node.op_type
    node.op_type = draft.one(
        [*(n.op_type for nodes in draft.node_lists() for n in nodes), "Identity", "Foo", ""]
    )
    if draft.random.random() < 0.3:
        del node.attribute[:]
    return f"{said} to {node.op_type}"


@mutation(KIND)
def rewire(draft: Draft) -> str:
    node = draft.one(n for nodes in draft.node_lists() for n in nodes if len(n.input))
    place = draft.random.randrange(len(node.input))
    node.input[place] = draft.one(draft.names())
    return f"{node.op_type} {place} to {node.input[place]}"


@mutation(KIND)
def cycle(draft: Draft) -> str:
    nodes = list(draft.model.graph.node)
    first = draft.one(range(len(nodes)))
    later = draft.one(range(first, len(nodes)))
    if not len(nodes[first].input):
        nodes[first].input.append("")
    nodes[first].input[0] = draft.one(nodes[later].output)
    return f"{nodes[first].op_type} reads {nodes[later].op_type}"


@mutation(KIND)
def undefined(draft: Draft) -> str:
    node = draft.node()
    place = draft.random.randrange(len(node.input) + 1)
    node.input[place : place + 1] = ["nowhere"]
    return f"{node.op_type} {place}"


@mutation(KIND)
def forget(draft: Draft) -> str:
    """An input left empty, or left out, or too many of them."""
    node = draft.node()
    place = draft.random.randrange(len(node.input) + 1)
    way = draft.random.randrange(4)
    if way == 0 and place < len(node.input):
        node.input[place] = ""
    elif way == 1:
        del node.input[place:]
    elif way == 2:
        node.input.append("")
    else:
        node.input.extend([draft.one(draft.names())] * draft.random.choice((1, 2, 300)))
    return f"{node.op_type} {place} {('emptied', 'cut', 'an empty one', 'more')[way]}"


@mutation(KIND)
def outputs(draft: Draft) -> str:
    """An output renamed, emptied, left out, or added."""
    node = draft.node()
    place = draft.random.randrange(len(node.output) + 1)
    way = draft.random.randrange(4)
    if way == 0 and place < len(node.output):
        node.output[place] = ""
    elif way == 1:
        del node.output[place:]
    elif way == 2:
        node.output.append(draft.fresh("more"))
    elif place < len(node.output):
        node.output[place] = draft.one(draft.names())
    return f"{node.op_type} {place} {('emptied', 'cut', 'one more', 'renamed')[way]}"


@mutation(KIND)
def same_name(draft: Draft) -> str:
    """One name for two values, everywhere."""
    old, new = draft.one(draft.names()), draft.one(draft.names())
    for nodes in draft.node_lists():
        for node in nodes:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
    return f"{old} is {new}"


@mutation(KIND)
def strange_name(draft: Draft) -> str:
    """A name that no identifier is."""
    old = draft.one(draft.names())
    new = draft.one(
        ("", " ", "a b", "a/b:0", "outer:x", "é", "\n", "\0", "x" * 5000, "0", "none", "%s{}", '"')
    )
    graph = draft.model.graph
    for nodes in draft.node_lists():
        for node in nodes:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer):
        if value.name == old:
            value.name = new
    return f"{old} is {new[:20]!r}"


@mutation(KIND)
def node_names(draft: Draft) -> str:
    for node in draft.model.graph.node:
        node.name = draft.one(("same", "", "\n", "y"))
    return ""


@mutation(KIND)
def output_of_input(draft: Draft) -> str:
    """An output of the model that is an input or an initializer."""
    graph = draft.model.graph
    value = draft.one(graph.output)
    other = draft.one((*graph.input, *graph.initializer))
    if draft.random.random() < 0.5:
        value.name = other.name
    else:
        graph.output.add(name=other.name).type.CopyFrom(value.type)
    return f"{other.name}"


@mutation(KIND)
def same_output(draft: Draft) -> str:
    graph = draft.model.graph
    graph.output.add().CopyFrom(draft.one(graph.output))
    return ""


@mutation(KIND)
def no_values(draft: Draft) -> str:
    """A graph without inputs, outputs or nodes."""
    graph = draft.graph()
    way = draft.one(("input", "output", "node", "initializer"))
    graph.ClearField(way)
    return str(way)


@mutation(KIND)
def output_of_inner(draft: Draft) -> str:
    """A value within the graph becomes an output, without a type or with one that is wrong."""
    graph = draft.model.graph
    name = draft.one(name for node in graph.node for name in node.output)
    added = graph.output.add(name=name)
    if draft.random.random() < 0.7:
        added.type.CopyFrom(draft.one(graph.output).type)
    return str(name)


@mutation(KIND)
def long_chain(draft: Draft) -> str:
    """Thousands of nodes where one edge was."""
    place, which = draft.edge()
    node = draft.model.graph.node[place]
    length = draft.one((50, 500, 3000))
    name = draft.fresh("chain")
    operator = draft.one(("Identity", "Relu", "Neg", "Abs"))
    names = [node.input[which], *(f"{name}.{k}" for k in range(length))]
    node.input[which] = names[-1]
    draft.insert(place, *(call(operator, [a], [b]) for a, b in zip(names, names[1:], strict=False)))
    return f"of {length} {operator}"


@mutation(KIND)
def doubling(draft: Draft) -> str:
    """x + x, again and again: as a tree it is exponential."""
    place, which = draft.edge()
    node = draft.model.graph.node[place]
    length = draft.one((10, 40, 200))
    operator = draft.one(("Add", "Mul", "Sub", "Max", "Concat"))
    name = draft.fresh("double")
    names = [node.input[which], *(f"{name}.{k}" for k in range(length))]
    node.input[which] = names[-1]
    more = {"axis": 0} if operator == "Concat" else {}
    draft.insert(
        place, *(call(operator, [a, a], [b], **more) for a, b in zip(names, names[1:], strict=False))
    )
    return f"{length} {operator}"
