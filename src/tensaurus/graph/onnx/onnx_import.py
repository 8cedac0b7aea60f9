"""Import an ONNX model as a program, without losing anything.

A node whose operator is declared becomes a typed node, which rewrites may change.  Every other one becomes an
opaque node (`opaque.OpaqueForm`), which is exported unchanged; bodies of If, Loop and Scan become programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto, TensorProto, ValueInfoProto

from tensaurus.graph.ir.node import Type
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.graph_importer import GraphImporter
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.onnx_frame import CONTENT_FIELDS, Frame, initializer_names, light_copy, opsets_of
from tensaurus.graph.onnx.value_types import ValueTypes, fix_shapes
from tensaurus.ops import TensorType
from tensaurus.ops.element_type import dtype_code, dtype_name
from tensaurus.system.errors import TensaurusError
from tensaurus.system.garbage_collector import pause_collector


def import_build(build: Build, shapes: Mapping[str, Sequence[int]] | None = None) -> Program:
    """Return the program of a build.  Weights in files of its folder are mapped into memory, not read.

    A weight that is also an input, as its default value, is read: the program's frame holds it.
    """
    model = build.proto(weights=not build.is_content_named)
    if not build.is_content_named:
        return import_model(inline_functions(model), shapes)
    if {value.name for value in model.graph.input} & initializer_names(model.graph):
        return import_model(inline_functions(build.proto()), shapes)
    assert isinstance(build.model, Path)
    return import_model(inline_functions(model), shapes, folder=build.model.parent)


def import_model(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    file: str | Path | None = None,
    folder: Path | None = None,
) -> Program:
    """Return the program of a checked model, which is not modified.

    shapes  fixes sizes of inputs
    folder  of the files that `WeightFiles` has written for the model

    Raises TensaurusError, with `file`, where shapes contradict the model or the model contradicts itself.
    """
    light = light_copy(model)
    fix_shapes(light, shapes or {}, file)
    graph = light.graph
    # an input that is also an initializer: a default value from IR version 4 on, a mere weight before
    both = {i.name for i in graph.input} & initializer_names(graph)
    overridable = both if model.ir_version >= 4 else set()
    inputs = [i for i in graph.input if i.name not in both - overridable]
    around_model = ModelProto()
    around_model.CopyFrom(light)
    for name in (*CONTENT_FIELDS, "input", "output"):
        around_model.graph.ClearField(name)
    around_model.graph.sparse_initializer.extend(
        t for t in graph.sparse_initializer if t.values.name in overridable
    )
    defaults = tuple(t for t in model.graph.initializer if t.name in overridable)
    frame = Frame(around_model, tuple(inputs), tuple(graph.output), defaults, fixed=bool(shapes))
    functions = frozenset((f.domain, f.name) for f in model.functions)
    importer = GraphImporter(opsets_of(model), functions, ValueTypes(light), graph=model.graph, folder=folder)
    try:
        with pause_collector():  # collections would only cost time: no node is garbage
            for value in inputs:
                importer.add_input(value)
            importer.import_nodes(model.graph, overridable)
        outputs = tuple((o.name, importer.lookup(o.name)) for o in graph.output)
        for value, (_, node) in zip(graph.output, outputs, strict=True):
            _require_stated_dtype(value, node.types[0])
    except TensaurusError as error:
        error.file = file if error.file is None else error.file
        raise
    return Program(
        inputs=tuple(importer.names[i.name] for i in inputs),
        outputs=outputs,
        names=importer.node_names(),
        frame=frame,
    )


def _require_stated_dtype(output: ValueInfoProto, kind: Type) -> None:
    """Raise TensaurusError where the model states another element type for an output than it computes."""
    stated = output.type.tensor_type.elem_type
    if isinstance(kind, TensorType) and stated not in (0, dtype_code(kind.dtype)):
        reason = f"output {output.name} is {kind.dtype}, but declared as {_format_dtype(stated)}"
        raise TensaurusError(reason, remedy="Declare the type that it has, or add a Cast.")


def _format_dtype(code: int) -> str:
    return dtype_name(code) if code in TensorProto.DataType.values() else f"of element type {code}"
