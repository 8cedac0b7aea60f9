"""ONNX's own backend corpus: every case of one declared operator is read, typed and evaluated."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
from onnx import numpy_helper

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.ops import TensorType, Untypable, registry
from tensaurus.ops.element_type import dtype_name
from tensaurus.ops.onnx_reader import read_node

# Why a node of a declared operator may stay opaque.
OPAQUE = re.compile(
    "in training mode"
    "|(of|to) (string|u?int[24]|float[48]e|undefined)"
    "|interpolation cubic|tf_crop_and_resize|antialiasing|not_(larger|smaller)"
)

# Cases whose expected values differ from ours, and why.
DIFFERENT = {
    "test_dynamicquantizelinear": "2.5 / (5 / 255) is 127.5, a tie; in float32 it is less",
    "test_reduce_max_empty_set_bool": "the maximum of nothing is minus infinity, of bools too",
    "test_resize_downsample_scales_linear_align_corners": "onnxruntime, too, aligns corners of whole sizes",
}


def numpy_of(data: Any) -> Any:
    return numpy_helper.to_array(data) if hasattr(data, "dims") else np.asarray(data)


def difference(case: Any) -> str:
    """How the values of a case differ from ours; empty where they do not.  Raises Untypable."""
    (node,) = case.model.graph.node
    op = registry[node.op_type]
    opset = next(o.version for o in case.model.opset_import if o.domain == "")
    given, expected = case.data_sets[0]
    formal = case.model.graph.input
    dtypes = {i.name: dtype_name(i.type.tensor_type.elem_type) for i in formal}
    if "undefined" in dtypes.values():
        raise Untypable(f"{op} of undefined")
    values = {i.name: numpy_of(v) for i, v in zip(formal, given, strict=True)}
    names, found = read_node(op, node, opset, values.get)
    first = node.input[0]
    arrays = [
        values[n] if isinstance(n, str) else None if n is None else n.astype(values[first].dtype)
        for n in names
    ]
    types = tuple(
        None if a is None else TensorType(dtypes[n if isinstance(n, str) else first], a.shape)
        for n, a in zip(names, arrays, strict=True)
    )
    attrs = op.canonical(types, found)
    field = Reals()
    leaves = {t: field.lift(a) for t, a in zip(op.tensors(types), arrays, strict=False) if t is not None}
    for scope, kind, other in zip(op.scopes(types, attrs), op.types(types, attrs), expected, strict=False):
        ours, theirs = interpret(scope, leaves, field), numpy_of(other)
        if kind.shape != theirs.shape or ours.shape != theirs.shape:
            return f"shape {ours.shape}, typed {kind}, is not {theirs.shape}"
        if kind.dtype != str(theirs.dtype):
            return f"typed {kind} is not {theirs.dtype}"
        rounding = 2e-3 if kind.dtype in ("float16", "bfloat16") else 1e-4
        if not np.allclose(
            ours.astype(float), theirs.astype(float), rtol=rounding, atol=rounding, equal_nan=True
        ):
            return f"{ours.ravel()[:6]} is not {theirs.ravel()[:6]}"
    return ""


def test_corpus() -> None:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    equal, opaque, wrong = 0, [], {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type not in registry:
            continue
        try:
            how = difference(case)
        except Untypable as error:
            opaque.append(f"{case.name}: {error}")
            continue
        if how:
            wrong[case.name] = how
        else:
            equal += 1
    print(f"{equal} cases of declared operators equal, {len(opaque)} opaque")
    assert wrong.keys() <= DIFFERENT.keys(), wrong
    assert [o for o in opaque if not OPAQUE.search(o)] == []
    assert equal >= 750
