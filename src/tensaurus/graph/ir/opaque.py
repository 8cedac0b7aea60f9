"""What we carry of an operator that we do not know, or know but cannot type."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from tensaurus.graph.ir.program import Program
from tensaurus.ops.leaf_form import ONNX_DOMAINS


@dataclass(frozen=True)
class OpaqueForm:
    """node     the serialised NodeProto: operator, domain, attributes; no names, no bodies
    inputs   how many of the node's arguments are its own inputs; the rest are captured by its bodies
    outputs  which outputs are wanted (ONNX may leave out any)
    bodies   (attribute, program) of If, Loop and Scan; every body lists all captured values, in order
    reason   why the operator is opaque; no part of its identity
    """

    node: bytes
    inputs: int
    outputs: tuple[bool, ...]
    bodies: tuple[tuple[str, Program], ...] = ()
    reason: str = field(default="", compare=False)

    @property
    def proto(self) -> onnx.NodeProto:
        proto = onnx.NodeProto()
        proto.ParseFromString(self.node)
        return proto

    @property
    def operator(self) -> str:
        """domain.Operator, as reports name it."""
        return operator_name(self.proto)


def operator_name(proto: onnx.NodeProto) -> str:
    """domain.Operator, without ONNX's own domain."""
    return f"{proto.domain}.{proto.op_type}" if proto.domain not in ONNX_DOMAINS else proto.op_type
