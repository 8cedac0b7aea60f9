"""Evaluates one opaque node over the reals, as a model of its own, in float64 if possible or on a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from onnx import ModelProto, TypeProto, ValueInfoProto

from tensaurus.graph.ir.node import Node, OtherType, Type, item, opaque, source
from tensaurus.graph.ir.opaque import OpaqueForm
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.ops import TensorType
from tensaurus.ops.element_type import dtype_code
from tensaurus.runtimes.backends import BackendError

MAX_EVALUATOR_ELEMENTS = 1 << 20  # for more, onnx's evaluator, which is written in Python, may take minutes

# Of each node the session of the runtime and that of onnx's evaluator, under these two names.
RUNTIME, EVALUATOR = "runtime", "evaluator"
_compiled: WeakKeyDictionary[Node, dict[str, Any]] = WeakKeyDictionary()


def run_alone(node: Node, args: Sequence[Any], frame: Any) -> list[Any]:
    """Return a node's outputs, by onnx's evaluator in float64 if it agrees roughly with the runtime.

    `args` has a value for each argument of the node; `frame` (`onnx_frame.Frame`) tells the opsets.

    The evaluator has errors of its own; where the two disagree, the runtime's outputs are returned.
    Raises BackendError where neither runs the node.
    """
    if frame is None:
        raise BackendError(f"reference: {node.attribute('form').operator}: no opset is known")
    sessions = _compiled.setdefault(node, {})
    form: OpaqueForm = node.attribute("form")
    own = _in_own_types(node, args)
    native: Any = None
    reason: Exception | None = None
    try:
        native = _on_runtime(node, own, frame, sessions)
    except Exception as error:  # the runtime may refuse the node by any exception
        reason = error
    size = sum(a.size for a in (*args, *(native or ())) if isinstance(a, np.ndarray))
    if native is None or size <= MAX_EVALUATOR_ELEMENTS:
        try:
            wide = _on_evaluator(node, args, frame, sessions)
            if native is None or all(map(_roughly_equal, wide, native)):
                return _fill_omitted(form, wide)
        except Exception as error:  # the evaluator may lack the operator, or fail in its Python code
            reason = reason or error
    if native is None:
        raise BackendError(f"reference: {form.operator}: {reason}") from reason
    return _fill_omitted(form, native)


def _fill_omitted(form: OpaqueForm, outputs: Sequence[Any]) -> list[Any]:
    """Return one value for every output of the node, None for outputs that it leaves out."""
    places = iter(outputs)
    return [next(places) if wanted else None for wanted in form.outputs]


def _in_own_types(node: Node, args: Sequence[Any]) -> list[Any]:
    """Return the arguments in the node's own types."""
    result = []
    for arg, value in zip(node.args, args, strict=True):
        kind = None if arg is None else arg.types[0]
        if isinstance(kind, TensorType) and isinstance(value, np.ndarray) and kind.dtype != "string":
            with np.errstate(all="ignore"):
                value = value.astype(numpy_dtype(kind.dtype))
        result.append(value)
    return result


def _model_of_node(node: Node, frame: Any) -> bytes:
    """Return a serialized model of the node, with inputs i0, i1, ... and outputs o0, o1, ..."""
    form: OpaqueForm = node.attribute("form")
    inputs = {k: source(f"i{k}", a.types[0]) for k, a in enumerate(node.args) if a is not None}
    made = opaque(form, [inputs.get(k) for k in range(len(node.args))], node.types)
    outputs = [(f"o{k}", item(made, k)) for k, wanted in enumerate(form.outputs) if wanted]

    def info(name: str, kind: Type) -> ValueInfoProto:
        value = ValueInfoProto(name=name)
        if isinstance(kind, TensorType):
            value.type.tensor_type.elem_type = dtype_code(kind.dtype)
        elif isinstance(kind, OtherType) and kind.proto:
            value.type.CopyFrom(TypeProto.FromString(kind.proto))
        return value

    around = replace(
        frame,
        inputs=tuple(info(f"i{k}", n.types[0]) for k, n in inputs.items()),
        outputs=tuple(info(name, n.types[0]) for name, n in outputs),
        defaults=(),
        fixed=False,
    )
    program = Program(tuple(inputs.values()), tuple(outputs), frame=around)
    return bytes(export_model(program, folded=False).SerializeToString())


def _on_runtime(node: Node, args: Sequence[Any], frame: Any, sessions: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    if RUNTIME not in sessions:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        sessions[RUNTIME] = ort.InferenceSession(_model_of_node(node, frame), options, providers=providers)
    feeds = {f"i{k}": v for k, (a, v) in enumerate(zip(node.args, args, strict=True)) if a is not None}
    return list(sessions[RUNTIME].run(None, feeds))


def _on_evaluator(node: Node, args: Sequence[Any], frame: Any, sessions: dict[str, Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    if EVALUATOR not in sessions:
        sessions[EVALUATOR] = ReferenceEvaluator(ModelProto.FromString(_model_of_node(node, frame)))
    narrow = _in_own_types(node, args)
    feeds = {}
    for k, (wide, own) in enumerate(zip(args, narrow, strict=True)):
        if node.args[k] is not None:
            floats = isinstance(wide, np.ndarray) and wide.dtype.kind == "f"
            feeds[f"i{k}"] = wide if floats else own
    with np.errstate(all="ignore"):
        return list(sessions[EVALUATOR].run(None, feeds))


def _roughly_equal(wide: Any, own: Any) -> bool:
    """Return whether two results are equal up to rounding; of integers only shapes count, as ties differ."""
    if isinstance(own, list):
        return isinstance(wide, list) and len(wide) == len(own) and all(map(_roughly_equal, wide, own))
    if not isinstance(own, np.ndarray):
        return (wide is None) == (own is None)
    wide = np.asarray(wide)
    if wide.shape != own.shape or (wide.dtype.kind in "OSU") != (own.dtype.kind in "OSU"):
        return False
    if wide.dtype.kind != "f" or not own.size:
        return True
    native = own.astype(np.float64)
    finite = np.isfinite(native) & np.isfinite(wide)
    scale = float(np.max(np.abs(native), where=finite, initial=0.0))
    return bool(np.all(np.abs(wide - native)[finite] <= 1e-2 * scale))
