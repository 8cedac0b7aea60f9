"""Find the types of a model's values: by ONNX's inference, with symbols for the sizes that are not numbers.

    the value x of FLOAT[batch, ?, 8]   ->   float32[batch, x_1, 8], with the symbols batch and x_1

ONNX gives a size as a number, as a name (`dim_param`), or not at all.  A name becomes a symbol, the same for
all values of a scope (see `Location`); a size that is not given becomes a symbol of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TypeProto, defs, helper, numpy_helper

from tensaurus.expr.sizes.size import Size, Symbol, polynomial, single_atom
from tensaurus.graph.ir.node import OtherType, Type
from tensaurus.graph.onnx.onnx_frame import bodies_of, graphs_in, stated_sizes
from tensaurus.graph.onnx.shape_inference import infer_shapes
from tensaurus.ops import TensorType
from tensaurus.ops.element_type import dtype_code, dtype_name
from tensaurus.ops.special_nodes import ONNX_DOMAINS
from tensaurus.system.errors import TensaurusError

# what exporters write for an unknown size, and names with a meaning in the text form of programs
_RESERVED_NAMES = frozenset(
    {"none", "null", "unknown", "dynamic", "inf", "nan", "max", "min", "true", "false"}
)


def is_size_name(parameter: str) -> bool:
    """Return whether a dim_param names a size; `?`, `unk__7` and the like stand for any size."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", parameter, re.ASCII)
    return bool(plain) and not parameter.startswith("unk__") and parameter.lower() not in _RESERVED_NAMES


def symbol_of(size: Size) -> Symbol | None:
    """Return the symbol that a size consists of, None for any other size."""
    atom = single_atom(size)
    return atom if isinstance(atom, Symbol) else None


def fix_shapes(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], file: str | Path | None = None
) -> None:
    """Write sizes into the model's inputs, and wherever else in its graph these inputs' size names stand.

    Raises TensaurusError where the sizes contradict the model.
    """
    initial = {t.name for t in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in initial}
    size_of_name: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise TensaurusError(
                f"it has no input {name}", file=file, remedy=f"Its inputs are {', '.join(inputs) or 'none'}."
            )
        if not inputs[name].type.HasField("tensor_type"):
            reason = f"input {name} is not a tensor and has no shape"
            raise TensaurusError(reason, file=file, remedy=f"Leave out --shape {name}.")
        kind = inputs[name].type.tensor_type
        if not kind.HasField("shape"):  # its rank is unknown, and becomes that of the given shape
            kind.shape.SetInParent()
            for size in shape:
                kind.shape.dim.add().dim_value = size
            continue
        if len(kind.shape.dim) != len(shape):
            reason = f"input {name} has {len(kind.shape.dim)} dimensions, not {len(shape)}"
            raise TensaurusError(reason, file=file, remedy="Give a size for each dimension.")
        for d, (dim, size) in enumerate(zip(kind.shape.dim, shape, strict=True)):
            if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != size:
                reason = f"input {name} has size {dim.dim_value} in dimension {d}, not {size}"
                raise TensaurusError(reason, file=file, remedy="Give the size that the model states.")
            if is_size_name(dim.dim_param) and size_of_name.setdefault(dim.dim_param, size) != size:
                reason = f"--shape gives {dim.dim_param} two sizes, {size_of_name[dim.dim_param]} and {size}"
                raise TensaurusError(reason, file=file, remedy="A name stands for one size in all inputs.")
    for entry in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if entry.type.HasField("tensor_type"):
            for dim in entry.type.tensor_type.shape.dim:
                if dim.dim_param in size_of_name:
                    dim.dim_value = size_of_name[dim.dim_param]
    for name, shape in shapes.items():
        for dim, size in zip(inputs[name].type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size


@dataclass(frozen=True)
class Location:
    """The graph of a value, and the scope in which equal names of sizes mean equal sizes.

    graph  the number of the graph in the order of `graphs_in`, as text
    scope  "" for the model's own graph, else the number of the body that has its own size names, as text.
           A branch of an If shares the scope of the graph around it; the body of a Loop or Scan has its own.
    """

    graph: str
    scope: str


class ValueTypes:
    """The types of all values of a model.  Both lists have one entry for each of its graphs (`graphs_in`).

    infos   by name: the type that ONNX infers, completed by the type that the model states
    stated  by name: the type that the model states, of values that are no inputs; it may be stale
    """

    def __init__(self, light: ModelProto):
        """Take the types from a light copy of the model (`onnx_frame`), and delete the copy's value infos."""
        # what the model states, taken out of the copy before inference
        stated_infos = [{v.name: v.type for v in graph.value_info} for graph in graphs_in(light.graph)]
        for graph in graphs_in(light.graph):
            del graph.value_info[:]  # a stated type must not overrule an inferred one
        self.stated = [
            names | {v.name: v.type for v in graph.output}
            for names, graph in zip(stated_infos, graphs_in(light.graph), strict=True)
        ]
        # what ONNX infers, completed by what the model states
        inferred = infer_shapes(light)
        self.infos: list[dict[str, TypeProto]] = []
        for names, graph in zip(stated_infos, graphs_in(inferred.graph), strict=True):
            for value in (*graph.input, *graph.output, *graph.value_info):
                names[value.name] = _merge_types(value.type, names.get(value.name))
            self.infos.append(names)
        self._symbols: dict[tuple[str, ...], Symbol] = {}
        self._taken: set[str] = set()
        for graph in graphs_in(light.graph):  # symbols of unnamed sizes must not have these names
            self._taken.update(
                dim.dim_param
                for value in (*graph.input, *graph.output, *graph.value_info)
                for dim in value.type.tensor_type.shape.dim
                if is_size_name(dim.dim_param)
            )

    def type_of(
        self,
        proto: TypeProto,
        name: str,
        location: Location,
        sizes: Mapping[str, Size] = MappingProxyType({}),
    ) -> Type:
        """Return the type of the value `name`, for which ONNX's type is `proto`.

        A value that is no tensor, or a tensor of unknown rank or element type, has an OtherType.  `sizes`
        gives the sizes for names that `_type_proto` has made.
        """
        tensor = proto.tensor_type
        if not proto.HasField("tensor_type") or not tensor.HasField("shape") or tensor.elem_type == 0:
            return OtherType(proto.SerializeToString(deterministic=True))
        shape: list[Size] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            elif dim.dim_param in sizes:
                shape.append(sizes[dim.dim_param])
            elif is_size_name(dim.dim_param):
                shape.append(polynomial(self._symbol("name", location.scope, dim.dim_param)))
            else:
                shape.append(polynomial(self._symbol("value", location.graph, name, str(axis))))
        return TensorType(dtype_name(tensor.elem_type), tuple(shape))

    def output_types(
        self,
        node: NodeProto,
        opset: int,
        kinds: Sequence[Type | None],
        values: Sequence[Any],
        location: Location,
        stated: Sequence[TypeProto],
    ) -> list[Type]:
        """Return the types of a node's outputs, inferred from the types and values of its arguments.

        opset   the version of the node's domain; 0, for which there is no schema, to use `stated` alone
        kinds   the types of the arguments; None for an absent one
        values  the elements of the arguments as far as they are known, else None
        stated  for each output its type in `infos`, which completes what is inferred here
        """
        # symbolic sizes go through ONNX's inference as names, and come back as the same sizes
        sizes: dict[str, Size] = {}
        types, data = {}, {}
        for name, kind, value in zip(node.input, kinds, values, strict=True):
            if name and kind is not None:
                types[name] = _type_proto(kind, sizes)
            if name and value is not None:
                data[name] = numpy_helper.from_array(value, name)
        domain = "" if node.domain in ONNX_DOMAINS else node.domain
        inferred: dict[str, TypeProto] = {}
        if not any(True for _ in bodies_of(node)):  # bodies may read values that `types` lacks
            try:
                schema = defs.get_schema(node.op_type, opset, domain)
                imports = [helper.make_opsetid(domain, opset)]
                inferred = onnx.shape_inference.infer_node_outputs(
                    schema, node, types, data, opset_imports=imports
                )
            except Exception:  # no schema, or inference fails: keep the types in `stated`
                inferred = {}
        merged = [
            _merge_types(inferred.get(name, TypeProto()), proto, sizes)
            for name, proto in zip(node.output, stated, strict=True)
        ]
        pairs = zip(node.output, merged, strict=True)
        return [self.type_of(kind, name, location, sizes) for name, kind in pairs]

    def _symbol(self, *key: str) -> Symbol:
        """Return the symbol of ("name", scope, size name) or ("value", graph, value, number of dimension).

        A size name of the model's own graph (scope "") is the symbol's name, too; any other symbol gets a
        name that no size of the model and no other symbol has.
        """
        if key not in self._symbols:
            kind, scope, *label = key
            hint = re.sub(r"\W", "_", "_".join(label), flags=re.ASCII)
            if kind == "value" or scope:
                hint = hint if is_size_name(hint) else f"size_{hint}"
                hint = next(
                    n for n in chain([hint], (f"{hint}_{k}" for k in count(1))) if n not in self._taken
                )
            self._symbols[key] = Symbol(hint)
            self._taken.add(hint)
        return self._symbols[key]


def describe_contradiction(kind: TensorType, stated: TypeProto, *, element: bool = False) -> str:
    """Return how a type contradicts a stated one, in words after "the value is", "" where it does not.

    Sizes are compared where both are numbers; with `element`, only element types are compared.  A type that
    is not stated contradicts nothing.
    """
    tensor = stated.tensor_type
    if stated.WhichOneof("value") not in (None, "tensor_type"):
        return f"{kind}, but declared as no tensor"
    if tensor.elem_type and tensor.elem_type != dtype_code(kind.dtype):
        return f"{kind}, but declared as {dtype_name(tensor.elem_type)}"
    sizes = stated_sizes(stated)
    if element or sizes is None:
        return ""
    differs = len(sizes) != kind.rank or any(
        isinstance(n, int) and m is not None and n != m for n, m in zip(kind.shape, sizes, strict=True)
    )
    shape = ", ".join("?" if n is None else str(n) for n in sizes)
    return f"{kind}, but declared as [{shape}]" if differs else ""


def _type_proto(kind: Type, sizes: dict[str, Size]) -> TypeProto:
    """Return the type as ONNX's message, in which names stand for symbolic sizes; add these to `sizes`."""
    if isinstance(kind, OtherType):
        proto = TypeProto()
        proto.ParseFromString(kind.proto)
        return proto
    dims: list[int | str] = []
    for size in kind.shape:
        if isinstance(size, int):
            dims.append(size)
        else:
            name = f"tensaurus:{size}"  # not an `is_size_name`; `type_of` finds it in inferred types
            sizes[name] = size
            dims.append(name)
    return helper.make_tensor_type_proto(dtype_code(kind.dtype), dims)


def _merge_types(inferred: TypeProto, stated: TypeProto | None, sizes: Collection[str] = ()) -> TypeProto:
    """Return the inferred type, completed by the stated one where nothing was inferred.

    Where both contradict each other, the inferred type counts.  One of its sizes counts as inferred if it is
    a number, a size name, or a name in `sizes`, which `_type_proto` has made.
    """
    if stated is None or not stated.HasField("tensor_type"):
        return inferred if stated is None or inferred.WhichOneof("value") else stated
    if not inferred.HasField("tensor_type") or not inferred.tensor_type.elem_type:
        return inferred if inferred.WhichOneof("value") not in (None, "tensor_type") else stated
    has_same_dtype = inferred.tensor_type.elem_type == stated.tensor_type.elem_type
    if not has_same_dtype or not stated.tensor_type.HasField("shape"):
        return inferred
    if not inferred.tensor_type.HasField("shape"):
        return stated
    dims, others = inferred.tensor_type.shape.dim, stated.tensor_type.shape.dim
    if len(dims) != len(others):
        return inferred
    result = TypeProto()
    result.CopyFrom(inferred)
    for dim, other in zip(result.tensor_type.shape.dim, others, strict=True):
        if not dim.HasField("dim_value") and not is_size_name(dim.dim_param) and dim.dim_param not in sizes:
            dim.CopyFrom(other)
    return result
