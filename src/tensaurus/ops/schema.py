"""Ask ONNX's own schemas what an operator has in an opset: its inputs, attributes, outputs and types."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from onnx import defs

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.ops.declare import Op, TensorType
from tensaurus.ops.element_type import tensor_text

NEWEST = defs.onnx_opset_version()  # the newest opset that the installed onnx knows


class NotInOpset(Untypable):
    """Raised where an opset lacks the operator, or cannot express its attributes or element types."""


@lru_cache(maxsize=4096)
def _schema(name: str, domain: str, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def schema_of(op: Op, opset: int) -> defs.OpSchema:
    """Return ONNX's schema of the operator in an opset.  Raises NotInOpset, also before `since`."""
    schema = _schema(op.name, op.domain, opset)
    if schema is None or schema.deprecated:
        raise NotInOpset(f"opset {opset} has no {op.name}")
    if opset < op.since:
        raise NotInOpset(f"{op.name} of opset {opset} differs from that of {op.since}")
    return schema


@cache
def versions(op: Op) -> tuple[int, ...]:
    """Return the opsets at which the operator's schema changed and the declaration holds, oldest first."""
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


def implied_attributes(op: Op, opset: int) -> dict[str, Any]:
    """Return the attributes that a node in this opset has where it does not state them."""
    result = {name: value for name, value in op.attributes.items() if op.has_default(name)}
    for version in sorted(op.before, reverse=True):  # of several that apply, the oldest wins
        if opset < version:
            result.update(op.before[version])
    return result


@cache
def formal_inputs(op: Op, opset: int) -> tuple[str, ...]:
    """Return the parameters that are inputs in this opset, in ONNX's order."""
    names = tuple(n for n in op.order if opset >= op.moved.get(n, 0))
    schema = schema_of(op, opset)
    if op.is_variadic or len(names) <= len(schema.inputs):
        return names
    # an older schema has fewer inputs: those that it names or, where names differ, the first ones
    schema_names = [i.name.lower() for i in schema.inputs]
    matching = tuple(n for n in names if n.lower() in schema_names)
    return matching if len(matching) == len(schema_names) else names[: len(schema_names)]


def attribute_name(op: Op, parameter: str) -> str:
    """Return the name of the ONNX attribute that the parameter is, or was before it became an input."""
    return op.old_names.get(parameter, parameter)


def is_last_variadic(parameters: Sequence[Any]) -> bool:
    """Return whether the last of a schema's inputs or outputs stands for any number of them."""
    return bool(parameters) and parameters[-1].option == defs.OpSchema.FormalParameterOption.Variadic


@cache
def max_outputs(op: Op, opset: int) -> int | None:
    """Return the largest number of outputs in this opset; None where it is unlimited."""
    formal_outputs = schema_of(op, opset).outputs
    counts = [count for version, count in op.outputs.items() if opset < version]
    if not is_last_variadic(formal_outputs):
        counts.append(len(formal_outputs))
    return min(counts, default=None)


def check_output_count(op: Op, names: Sequence[str], opset: int) -> None:
    """Raise NotInOpset where the opset lacks one of these outputs ("": not wanted)."""
    count = max_outputs(op, opset)
    if count is not None and any(names[count:]):
        raise NotInOpset(f"{op.name} of opset {opset} has {count} outputs")


@lru_cache(maxsize=4096)
def check_input_types(op: Op, types: tuple[TensorType | None, ...], opset: int) -> None:
    """Raise NotInOpset unless the schema allows the element types, and equal ones where it demands that."""
    schema = schema_of(op, opset)
    parameters = formal_inputs(op, opset)
    dtype_by_type_variable: dict[str, str] = {}
    for k, kind in enumerate(types):
        parameter = op.inputs[min(k, len(op.inputs) - 1)].name
        if kind is None:
            continue
        if parameter not in parameters:
            if attribute_name(op, parameter) not in schema.attributes:
                raise NotInOpset(f"{op.name} of opset {opset} has no input {parameter}")
            continue
        formal = schema.inputs[min(parameters.index(parameter), len(schema.inputs) - 1)]
        if tensor_text(kind.dtype) not in formal.types:
            raise NotInOpset(f"{op.name} of opset {opset} does not take {kind.dtype}")
        if (
            formal.is_homogeneous
            and dtype_by_type_variable.setdefault(formal.type_str, kind.dtype) != kind.dtype
        ):
            raise NotInOpset(f"{op.name} of opset {opset} does not take {kind.dtype} beside others")
