"""Suggest the option `--shape` where known input sizes would let more nodes be typed, and so optimized."""

from __future__ import annotations

from tensaurus.expr.sizes.size import Symbol, atoms
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.value_types import is_size_name
from tensaurus.ops import TensorType, registry


def missing_shape_flags(program: Program) -> list[str]:
    """Return flags such as `--shape x=N,3,48,W`, in which the user replaces letters by numbers.

    There is a flag for each input of which a symbolic size occurs in an argument of an opaque node with a
    declared operator: with numbers for sizes that node might be typed.
    """
    blocking: set[Symbol] = set()
    for node in program.opaque:
        if node.attribute("form").operator in registry:
            blocking.update(s for arg in node.args if arg is not None for s in _symbols(arg))
    stated = {} if program.frame is None else {value.name: value for value in program.frame.inputs}
    flags = []
    for node in program.inputs:
        kind = node.types[0]
        if not isinstance(kind, TensorType) or blocking.isdisjoint(_symbols(node)):
            continue
        name = node.attribute("name")
        dims = stated[name].type.tensor_type.shape.dim if name in stated else ()
        sizes = []
        for d, size in enumerate(kind.shape):
            parameter = dims[d].dim_param if d < len(dims) else ""
            letter = "NCHW"[d] if kind.rank == 4 else f"N{d or ''}"
            name_or_letter = parameter if is_size_name(parameter) else letter
            sizes.append(str(size) if isinstance(size, int) else name_or_letter)
        flags.append(f"--shape {name}={','.join(sizes)}")
    return flags


def _symbols(node: Node) -> set[Symbol]:
    kinds = (kind for kind in node.types if isinstance(kind, TensorType))
    return {a for kind in kinds for n in kind.shape for a in atoms(n) if isinstance(a, Symbol)}
