"""Reads the model that is optimized, and keeps it in each form that a run needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx

from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.graph.ir.census import folded_constant_bytes
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.kernel_libraries import find_libraries
from tensaurus.graph.onnx.model_file import load_model
from tensaurus.graph.onnx.onnx_frame import stated_sizes
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType
from tensaurus.optimizer.run.options import Options
from tensaurus.system.errors import TensaurusError

__all__ = ["Original", "format_fixed_sizes"]


@dataclass(frozen=True)
class Original:
    """The original model and its program.

    name         the model's name in messages
    libraries    of kernels that the model calls, where an earlier run optimized it
    fixed_sizes  inputs whose sizes the program fixes and the model leaves open: "x=1,3,640,640"
    """

    name: str
    model: onnx.ModelProto
    program: Program
    libraries: tuple[Path, ...] = ()
    fixed_sizes: str = ""

    @classmethod
    def read(cls, model: str | Path | onnx.ModelProto, options: Options) -> Original:
        """Read the model from a file or a message.  Raises TensaurusError for an invalid model."""
        if isinstance(model, onnx.ModelProto):
            name, proto, libraries = "the model", model, tuple[Path, ...]()
        else:
            name, proto, libraries = str(model), load_model(model), find_libraries(model)
        program = import_model(inline_functions(proto, name), options.shapes, name)
        return cls(name, proto, program, libraries, format_fixed_sizes(proto, program))

    def at_sizes(self, shapes: Mapping[str, Sequence[int]]) -> Original:
        """Return the original with its inputs at these shapes in the program; the model leaves them open.

        The program stays as it is where no size is open, or where it cannot be typed at these sizes.
        """
        kinds = (node.types[0] for node in self.program.inputs)
        if all(isinstance(kind, TensorType) and kind.static for kind in kinds):
            return self
        try:
            program = import_model(inline_functions(self.model, self.name), shapes, self.name)
        except TensaurusError:
            return self
        return replace(self, program=program, fixed_sizes=format_fixed_sizes(self.model, program))

    @cached_property
    def fixed_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes in the program of the inputs whose sizes the model leaves open.

        Without those that have open sizes in the program, too.
        """
        stated = {value.name: stated_sizes(value.type) for value in self.model.graph.input}
        shapes: dict[str, tuple[int, ...]] = {}
        for node in self.program.inputs:
            name, kind = node.attribute("name"), node.types[0]
            if isinstance(kind, TensorType) and kind.static and None in (stated[name] or [None]):
                shapes[name] = tuple(size for size in kind.shape if isinstance(size, int))
        return shapes

    @cached_property
    def open_program(self) -> Program:
        """The program with all sizes open that the model leaves open."""
        return import_model(inline_functions(self.model, self.name), None, self.name)

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of constants that the program reads at run time, those computed from constants included."""
        return folded_constant_bytes(self.program)

    @property
    def why_unfit(self) -> str:
        """Why the model cannot be run on made-up inputs, for users; "" where it can."""
        strange = [v.name for v in required_inputs(self.model) if not v.type.HasField("tensor_type")]
        if not strange:
            return ""
        only = "only models whose inputs are all tensors can be optimized"
        return f"input {strange[0]} is not a tensor, so no test values can be made for it; {only}"


def format_fixed_sizes(model: onnx.ModelProto, program: Program) -> str:
    """Return the inputs whose sizes the program fixes and the model leaves open, as 'x=1,3,?,?'."""
    stated = {value.name: stated_sizes(value.type) for value in model.graph.input}
    fixed = list[str]()
    for node in program.inputs:
        name, kind = node.attribute("name"), node.types[0]
        if isinstance(kind, TensorType):
            sizes = stated[name] or [None] * kind.rank
            if any(old is None and isinstance(new, int) for old, new in zip(sizes, kind.shape, strict=True)):
                shape = ",".join(str(size) if isinstance(size, int) else "?" for size in kind.shape)
                fixed.append(f"{name}={shape}")
    return " ".join(fixed)
