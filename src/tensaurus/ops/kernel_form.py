"""Write a compiled expression as an ONNX node that carries the expression's text, and read that text back."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import AttributeProto, NodeProto, helper

from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Scope

__all__ = ["KERNELS", "kernel_proto", "scope_text"]

KERNELS = "tensaurus.kernels"  # the domain of operators that are kernels
_SCOPE = "scope"  # the attribute that holds the text


def kernel_proto(kernel: str, scope: Scope, inputs: Sequence[str], output: str) -> NodeProto:
    """Return the node that runs the kernel of this name, which computes the scope."""
    return helper.make_node(kernel, list(inputs), [output], output, domain=KERNELS, **{_SCOPE: show(scope)})


def scope_text(node: NodeProto) -> str | None:
    """Return the expression that a kernel's node carries; None for any other node."""
    if node.domain == KERNELS:
        for attribute in node.attribute:
            if attribute.name == _SCOPE and attribute.type == AttributeProto.STRING:
                return str(attribute.s, "utf-8", "replace")
    return None
