"""Write a compiled expression as an ONNX node that carries the expression's text, and read that text back."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import AttributeProto, NodeProto, helper

from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Scope

KERNEL_DOMAIN = "tensaurus.kernels"  # the domain of operators that are kernels
_SCOPE = "scope"  # the attribute that holds the text


def make_kernel_node(kernel: str, scope: Scope, inputs: Sequence[str], output: str) -> NodeProto:
    """Return the node that runs the kernel of this name, which computes the scope."""
    text = {_SCOPE: show(scope)}
    return helper.make_node(kernel, list(inputs), [output], output, domain=KERNEL_DOMAIN, **text)


def scope_text(node: NodeProto) -> str | None:
    """Return the expression that a kernel's node carries; None for any other node."""
    if node.domain == KERNEL_DOMAIN:
        for attribute in node.attribute:
            if attribute.name == _SCOPE and attribute.type == AttributeProto.STRING:
                return str(attribute.s, "utf-8", "replace")
    return None
