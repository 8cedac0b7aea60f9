"""The model that is optimized, as it was given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from tensaurus.check.inputs.model_interface import required_inputs
from tensaurus.graph.ir.census import constant_bytes
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.inlining import inline_functions
from tensaurus.graph.onnx.kernel_libraries import find_libraries
from tensaurus.graph.onnx.model_file import load_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.optimizer.run.open_sizes import fixed_sizes
from tensaurus.optimizer.run.options import Options

__all__ = ["Original"]


@dataclass(frozen=True)
class Original:
    """A model with its program, and its name for people."""

    name: str
    model: onnx.ModelProto
    program: Program
    libraries: tuple[Path, ...] = ()  # of kernels
    fixed: str = ""  # inputs whose sizes the program fixes and the model leaves open: "x=1,3,640,640"

    @classmethod
    def read(cls, model: str | Path | onnx.ModelProto, options: Options) -> Original:
        """From a file or a message.  Raises TensaurusError for what is no model."""
        if isinstance(model, onnx.ModelProto):
            name, proto, libraries = "the model", model, tuple[Path, ...]()
        else:
            name, proto, libraries = str(model), load_model(model), find_libraries(model)
        program = import_model(inline_functions(proto, name), options.shapes, name)
        return cls(name, proto, program, libraries, fixed_sizes(proto, program))

    @cached_property
    def general(self) -> Program:
        """The program with the sizes that the model leaves open."""
        return import_model(inline_functions(self.model, self.name), None, self.name)

    @cached_property
    def weights(self) -> int:
        """Bytes of the constants that it reads at run time, what is computed from constants among them."""
        return constant_bytes(self.program)

    @property
    def unfit(self) -> str:
        """Why nothing can be measured of it, "" where something can."""
        strange = [v.name for v in required_inputs(self.model) if not v.type.HasField("tensor_type")]
        return f"input {strange[0]} is not a tensor, so no test values can be made for it" if strange else ""
