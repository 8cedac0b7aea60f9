"""The content of an opaque node: an operator without a declaration, or one that could not be typed."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from tensaurus.graph.ir.program import Program
from tensaurus.ops.special_nodes import ONNX_DOMAINS


@dataclass(frozen=True)
class OpaqueForm:
    """An operator as the model states it, to be written back unchanged on export.

    node     the serialised NodeProto with operator, domain and attributes, without names and bodies
    inputs   number of arguments that are inputs of the operator; its bodies capture the other arguments
    outputs  for each output, whether it is read (ONNX may leave out any)
    bodies   (attribute, program) of If, Loop and Scan; every body lists all captured values, in order
    reason   why the node is opaque, for reports; it does not distinguish nodes
    """

    node: bytes
    inputs: int
    outputs: tuple[bool, ...]
    bodies: tuple[tuple[str, Program], ...] = ()
    reason: str = field(default="", compare=False)

    @property
    def proto(self) -> onnx.NodeProto:
        """Return the operator as ONNX's message."""
        proto = onnx.NodeProto()
        proto.ParseFromString(self.node)
        return proto

    @property
    def operator(self) -> str:
        """Return domain.Operator, as reports name the node."""
        return operator_name(self.proto)


def operator_name(proto: onnx.NodeProto) -> str:
    """Return domain.Operator, or Operator alone for ONNX's own domain."""
    return f"{proto.domain}.{proto.op_type}" if proto.domain not in ONNX_DOMAINS else proto.op_type
