"""Inline the functions that a model defines itself, so that their nodes can be optimized.

onnx inlines; this module first refuses recursion, too many nodes and ambiguous names, and repairs defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

from onnx import FunctionProto, ModelProto, NodeProto, defs
from onnx.inliner import inline_local_functions

from tensaurus.graph.onnx.onnx_frame import bodies_of
from tensaurus.ops.special_nodes import ONNX_DOMAINS
from tensaurus.system.errors import TensaurusError, name_file_in_errors

MAX_NODES = 200_000  # of an inlined model: onnx takes seconds to inline this many nodes

Key: TypeAlias = tuple[str, str, str]  # domain, name, overload


def inline_functions(model: ModelProto, file: str | Path | None = None) -> ModelProto:
    """Return the model with every call of its functions inlined; the model itself where it has no functions.

    Raises TensaurusError, before anything is inlined, for a function that calls itself, for a call with more
    arguments or outputs than its function has, and for more than MAX_NODES nodes.
    """
    if not model.functions:
        return model
    with name_file_in_errors("the model" if file is None else file):
        functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
        _refuse_onnx_names(functions)
        _limit_nodes(model, functions)
        try:
            flat = inline_local_functions(_write_defaults(model))
        except Exception as error:  # whatever else onnx finds wrong with them
            reason = " ".join(str(error).split())[:400] or type(error).__name__
            remedy = "Export the model again without functions."
            raise TensaurusError(f"its functions cannot be inlined: {reason}", remedy=remedy) from error
    _restore_functions(flat, functions)
    return flat


def _refuse_onnx_names(functions: Mapping[Key, FunctionProto]) -> None:
    """Refuse a function with the name of an ONNX operator: runtimes disagree on which of both is called."""
    for key in functions:
        domain, name, _ = key
        if defs.has(name, domain):
            reason = f"the function {_format_key(key)} has the name of an ONNX operator"
            raise TensaurusError(reason, remedy="Give the function a domain of its own.")


def _restore_functions(flat: ModelProto, functions: Mapping[Key, FunctionProto]) -> None:
    """Put back the functions that onnx could not inline, and so still calls, because of other opsets."""
    known = {_key(f.domain, f.name, f.overload) for f in flat.functions}
    waiting = list(flat.functions)
    while waiting:
        for node in _nodes_and_bodies(waiting.pop().node):
            callee = _callee(node)
            if callee in functions and callee not in known:
                known.add(callee)
                flat.functions.append(functions[callee])
                waiting.append(functions[callee])


def _write_defaults(model: ModelProto) -> ModelProto:
    """Return the model with default attributes of functions written into calls: onnx's inliner drops them."""
    copy = ModelProto()
    copy.CopyFrom(model)
    defaults = {_key(f.domain, f.name, f.overload): list(f.attribute_proto) for f in copy.functions}
    for nodes in (copy.graph.node, *(f.node for f in copy.functions)):
        for node in _nodes_and_bodies(nodes):
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(a for a in defaults.get(_callee(node), ()) if a.name not in given)
    return copy


def _limit_nodes(model: ModelProto, functions: Mapping[Key, FunctionProto]) -> None:
    """Raise TensaurusError where inlining would give more than MAX_NODES nodes, or never end."""
    sizes: dict[Key, int] = {}  # number of nodes that a call becomes
    for key in _callees_first(functions):
        where = f"in the function {_format_key(key)}, "
        sizes[key] = _inlined_size(functions[key].node, functions, sizes, where)
    total = _inlined_size(model.graph.node, functions, sizes)
    if total > MAX_NODES:
        number = f"{total:,}" if total < 10**15 else "more than 10^15"
        reason = f"inlining its functions gives {number} nodes; at most {MAX_NODES:,} are supported"
        raise TensaurusError(reason, remedy="Export the model again without functions.")


def _callees_first(functions: Mapping[Key, FunctionProto]) -> list[Key]:
    """Return the functions, each after those that it calls.  Raises TensaurusError for recursion."""
    calls = {
        key: {callee for node in _nodes_and_bodies(function.node) if (callee := _callee(node)) in functions}
        for key, function in functions.items()
    }
    try:
        return list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        called = _format_key(error.args[1][0])
        reason = f"the function {called} calls itself, directly or through other functions"
        remedy = "ONNX allows no recursion: export the model without it."
        raise TensaurusError(reason, remedy=remedy) from error


def _inlined_size(
    nodes: Iterable[NodeProto],
    functions: Mapping[Key, FunctionProto],
    sizes: Mapping[Key, int],
    where: str = "",
) -> int:
    """Return the number of nodes after inlining; `where` begins messages about calls in these nodes."""
    total = 0
    for node in _nodes_and_bodies(nodes):
        callee = _callee(node)
        if callee in functions:
            function = functions[callee]
            for what, given, most in (
                ("arguments", len(node.input), len(function.input)),
                ("outputs", len(node.output), len(function.output)),
            ):
                if given > most:
                    call = f"{where}a call of {_format_key(callee)}"
                    raise TensaurusError(
                        f"{call} has {given} {what}, the function has {most}",
                        node=node.name or next(iter(node.output), None),
                        remedy="Export the model again.",
                    )
        total += sizes.get(callee, 1)
    return total


def _nodes_and_bodies(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes, each followed by those of its bodies."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from _nodes_and_bodies(body.node)


def _callee(node: NodeProto) -> Key:
    return _key(node.domain, node.op_type, node.overload)


def _key(domain: str, name: str, overload: str) -> Key:
    return ("" if domain in ONNX_DOMAINS else domain, name, overload)


def _format_key(key: Key) -> str:
    return ".".join(filter(None, key))
