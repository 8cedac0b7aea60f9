"""Functions of the model's own: recursive, missing, wrongly called, exploding."""

from __future__ import annotations

from onnx import FunctionProto, helper

from mutations.draw import Draft, Inapplicable, call, copied, mutation
from tensaurus.graph.onnx.onnx_frame import bodies_of

KIND = "functions"
DOMAIN = "fuzz"


def _ready(draft: Draft, domain: str = DOMAIN) -> list[helper.OperatorSetIdProto]:
    """The model imports the domain; the imports of a function."""
    imports = draft.model.opset_import
    if domain not in {entry.domain for entry in imports}:
        imports.add(domain=domain, version=1)
    if draft.model.ir_version < 8:
        draft.model.ir_version = 8
    return list(imports)


def _fresh(draft: Draft, name: str) -> str:
    known = sum(f.domain == DOMAIN for f in draft.model.functions)
    return f"{name}{known}"


def _define(
    draft: Draft, name: str, nodes: list[object], inputs: str = "v", outputs: str = "r"
) -> FunctionProto:
    made = helper.make_function(
        DOMAIN, _fresh(draft, name), inputs.split(), outputs.split(), nodes, _ready(draft)
    )
    draft.model.functions.append(made)
    return made


def _called(draft: Draft, name: str, more_inputs: int = 0, more_outputs: int = 0) -> None:
    """A call of the function on an edge of the main graph."""
    place, which = draft.edge()
    node = draft.model.graph.node[place]
    read, out = node.input[which], draft.fresh("called")
    node.input[which] = out
    outputs = [out, *(draft.fresh(f"spare{k}.") for k in range(more_outputs))]
    draft.insert(place, call(name, [read] * (1 + more_inputs), outputs, DOMAIN))


def _function(draft: Draft) -> FunctionProto:
    found: FunctionProto = draft.one(draft.model.functions)
    return found


@mutation(KIND)
def harmless(draft: Draft) -> str:
    """Functions that call functions, on any edge."""
    inner = _define(draft, "inner", [call("Identity", ["v"], ["r"])])
    nodes = [call(inner.name, ["v"], ["m"], DOMAIN), call("Identity", ["m"], ["r"])]
    _called(draft, _define(draft, "outer", nodes).name)
    return ""


@mutation(KIND)
def bomb(draft: Draft) -> str:
    depth = draft.one((4, 10, 19, 24, 60, 90))
    name = _define(draft, "f", [call("Identity", ["v"], ["r"])]).name
    for _ in range(depth):
        nodes = [call(name, ["v"], ["m"], DOMAIN), call(name, ["m"], ["r"], DOMAIN)]
        name = _define(draft, "f", nodes).name
    _called(draft, name)
    return f"of depth {depth}"


@mutation(KIND)
def bomb_in_body(draft: Draft) -> str:
    """The calls are in the branches of an If."""
    depth = draft.one((3, 8, 24))
    name = _define(draft, "f", [call("Identity", ["v"], ["r"])]).name
    for _ in range(depth):
        branches = {
            side: helper.make_graph(
                [call(name, ["v"], ["b"], DOMAIN)], side, [], [helper.make_empty_tensor_value_info("b")]
            )
            for side in ("then_branch", "else_branch")
        }
        yes = helper.make_tensor("t", 9, [], [True])
        nodes = [call("Constant", [], ["c"], value=yes), call("If", ["c"], ["r"], **branches)]
        name = _define(draft, "f", nodes).name
    _called(draft, name)
    return f"of depth {depth}"


@mutation(KIND)
def recursive(draft: Draft) -> str:
    made = _define(draft, "f", [call("Identity", ["v"], ["r"])])
    length = draft.one((1, 2, 5))
    name = made.name
    for _ in range(length - 1):
        name = _define(draft, "f", [call(name, ["v"], ["r"], DOMAIN)]).name
    made.node[0].CopyFrom(call(name, ["v"], ["r"], DOMAIN))
    _called(draft, name)
    return f"over {length}"


@mutation(KIND)
def chain(draft: Draft) -> str:
    length = draft.one((50, 99, 300, 5000))
    imports = _ready(draft)
    for k in range(length):
        nodes = [call(f"c{k - 1}", ["v"], ["r"], DOMAIN) if k else call("Identity", ["v"], ["r"])]
        draft.model.functions.append(helper.make_function(DOMAIN, f"c{k}", ["v"], ["r"], nodes, imports))
    _called(draft, f"c{length - 1}")
    return f"of {length}"


@mutation(KIND)
def missing(draft: Draft) -> str:
    _ready(draft)
    _called(draft, "nowhere")
    return ""


@mutation(KIND)
def removed(draft: Draft) -> str:
    functions = draft.model.functions
    place = draft.one(range(len(functions)))
    said = functions[place].name
    del functions[place]
    return said


@mutation(KIND)
def arguments(draft: Draft) -> str:
    """More or fewer than the function has."""
    made = _define(
        draft, "two", [call("Identity", ["v"], ["r"]), call("Identity", ["w"], ["s"])], "v w", "r s"
    )
    more, spare = draft.one((0, 1, 2, 5)), draft.one((0, 1, 2, 5))
    _called(draft, made.name, more, spare)
    return f"{1 + more} arguments, {1 + spare} outputs"


@mutation(KIND)
def call_changed(draft: Draft) -> str:
    """A call of a function that the model has."""
    names = [f.name for f in draft.model.functions]
    node = draft.one(n for nodes in draft.node_lists() for n in nodes if n.op_type in names)
    way = draft.random.randrange(6)
    if way == 0:
        node.input.append(draft.one(draft.names()))
    elif way == 1:
        del node.input[-1:]
    elif way == 2:
        node.output.append(draft.fresh("more"))
    elif way == 3:
        del node.output[-1:]
    elif way == 4:
        del node.attribute[:]
        node.input[0] = ""
    else:
        node.op_type = draft.one(names)
    return f"{node.op_type} way {way}"


@mutation(KIND)
def formals(draft: Draft) -> str:
    """Names of a function's own: the same twice, empty, undefined, too many."""
    function = _function(draft)
    way = draft.random.randrange(6)
    if way == 0:
        function.input.append(function.input[0] if len(function.input) else "")
    elif way == 1:
        function.output[0] = draft.one((*function.input, "nowhere", ""))
    elif way == 2:
        del function.input[:]
    elif way == 3:
        del function.node[-1:]
    elif way == 4:
        function.input.append("")
    else:
        function.output.append(function.output[0])
    return f"{function.name} way {way}"


@mutation(KIND)
def imports(draft: Draft) -> str:
    """Imports of a function that differ from the model's, or are missing."""
    function = _function(draft)
    way = draft.random.randrange(4)
    if way == 0:
        del function.opset_import[:]
    elif way == 1 and len(function.opset_import):
        function.opset_import[0].version = draft.one((1, 7, 13, 20, 99, -1))
    elif way == 2:
        function.opset_import.add(domain="nowhere", version=3)
    else:
        function.domain = draft.one(("", "ai.onnx", "other", "é"))
    return f"of {function.name} way {way}"


@mutation(KIND)
def overriding(draft: Draft) -> str:
    """A function with the name of an ONNX operator."""
    node = draft.one(n for n in draft.model.graph.node if len(n.input) and len(n.output) and not n.domain)
    domain = draft.one(("", "ai.onnx"))
    inputs = [f"v{k}" for k in range(len(node.input))]
    nodes = [call("Identity", [inputs[0]], [f"r{k}"]) for k in range(len(node.output))]
    outputs = [f"r{k}" for k in range(len(node.output))]
    made = helper.make_function(domain, node.op_type, inputs, outputs, nodes, _ready(draft))
    draft.model.functions.append(made)
    return f"{node.op_type} in {domain!r}"


@mutation(KIND)
def twice(draft: Draft) -> str:
    function = _function(draft)
    copy = draft.model.functions.add()
    copy.CopyFrom(function)
    if draft.random.random() < 0.5:
        copy.overload = "other"
    return function.name


@mutation(KIND)
def attributes(draft: Draft) -> str:
    """Attributes that a function declares, or refers to, and does not have."""
    function = _function(draft)
    way = draft.random.randrange(4)
    if way == 0:
        function.attribute.append("required")
    elif way == 1:
        del function.attribute_proto[:]
    elif way == 2:
        function.attribute_proto.append(helper.make_attribute("slope", draft.one((1, "text", [1.0], 0.5))))
    else:
        owners = [n for n in function.node if len(n.attribute)]
        draft.one(draft.one(owners).attribute).ref_attr_name = "nowhere"
    return f"of {function.name} way {way}"


@mutation(KIND)
def outlined(draft: Draft) -> str:
    """A node of the graph becomes a function of its own: still the same model."""
    nodes = draft.model.graph.node
    place = draft.one(range(len(nodes)))
    node = nodes[place]
    if any(True for _ in bodies_of(node)) or node.domain or not len(node.input) or not all(node.input):
        raise Inapplicable
    inner = copied(node)
    inner.input[:] = [f"v{k}" for k in range(len(node.input))]
    inner.output[:] = [name and f"r{k}" for k, name in enumerate(node.output)]
    made = _define(draft, node.op_type, [inner], " ".join(inner.input), " ".join(filter(None, inner.output)))
    kept = [name for name in node.output if name]
    nodes[place].CopyFrom(call(made.name, list(node.input), kept, DOMAIN))
    return inner.op_type
