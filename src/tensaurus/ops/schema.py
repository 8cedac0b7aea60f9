"""ONNX's own schemas: what an operator's inputs and attributes are in an opset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from onnx import defs

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.ops.declare import Op

NEWEST = defs.onnx_opset_version()


class NotInOpset(Untypable):
    """This opset lacks the operator, or cannot express these attributes or element types."""


@lru_cache(maxsize=4096)
def _schema(name: str, domain: str, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def schema_of(op: Op, opset: int) -> defs.OpSchema:
    """ONNX's schema of the operator in an opset.  Raises NotInOpset, also before `since`."""
    schema = _schema(op.name, op.domain, opset)
    if schema is None or schema.deprecated:
        raise NotInOpset(f"opset {opset} has no {op.name}")
    if opset < op.since:
        raise NotInOpset(f"{op.name} of opset {opset} differs from that of {op.since}")
    return schema


@cache
def versions(op: Op) -> tuple[int, ...]:
    """The opsets at which the operator's schema changed and the declaration holds, oldest first."""
    changed = {
        max(s.since_version, op.since)
        for s in defs.get_all_schemas_with_history()
        if s.name == op.name and s.domain == op.domain
    }
    result = []
    for version in sorted(changed):
        schema = _schema(op.name, op.domain, version)
        if schema is not None and not schema.deprecated:
            result.append(version)
    return tuple(result)


def implied(op: Op, opset: int) -> dict[str, Any]:
    """What the operator's attributes are in this opset where a node does not give them."""
    result = {name: value for name, value in op.attributes.items() if op.has_default(name)}
    for version in sorted(op.before, reverse=True):
        if opset < version:
            result.update(op.before[version])
    return result


@cache
def formals(op: Op, opset: int) -> tuple[str, ...]:
    """The parameters that are inputs in this opset, in ONNX's order."""
    names = tuple(n for n in op.order if opset >= op.moved.get(n, 0))
    schema = schema_of(op, opset)
    if op.variadic or len(names) <= len(schema.inputs):
        return names
    theirs = [i.name.lower() for i in schema.inputs]
    matching = tuple(n for n in names if n.lower() in theirs)
    return matching if len(matching) == len(theirs) else names[: len(theirs)]


def attribute_name(op: Op, parameter: str) -> str:
    return op.formerly.get(parameter, parameter)


def variadic_end(parameters: Sequence[Any]) -> bool:
    return bool(parameters) and parameters[-1].option == defs.OpSchema.FormalParameterOption.Variadic


@cache
def most_outputs(op: Op, opset: int) -> int | None:
    """How many outputs the operator has in this opset; None where there is no end."""
    theirs = schema_of(op, opset).outputs
    counts = [count for version, count in op.outputs.items() if opset < version]
    if not variadic_end(theirs):
        counts.append(len(theirs))
    return min(counts, default=None)
