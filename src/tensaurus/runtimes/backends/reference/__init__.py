"""Runs models in float64 by evaluating the expressions of their operators: the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from tensaurus.graph.onnx.build import Build
from tensaurus.runtimes.backends import Array, Backend, BackendError, Port
from tensaurus.runtimes.backends._ports import ports_of

if TYPE_CHECKING:
    from tensaurus.expr.evaluate.fields import Reals
    from tensaurus.graph.ir.node import Node, Type
    from tensaurus.graph.ir.program import Program
    from tensaurus.runtimes.backends.reference.evaluation import Token, evaluate, evaluate_all
    from tensaurus.runtimes.backends.reference.kept_constants import KeptConstants

__all__ = ["BACKEND", "Session", "Token", "evaluate", "evaluate_all"]


def __getattr__(name: str) -> Any:
    """Import the evaluator at its first use, so that listing backends does not import it."""
    if name not in ("Token", "evaluate", "evaluate_all"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.evaluation"), name)


KEPT_SHARE = 0.25  # of the memory available at the first run, for weights that stay in float64


@dataclass
class Session:
    """An imported model in float64; its weights are converted in the first run."""

    program: Program
    _constants: KeptConstants | None = field(default=None, init=False, repr=False, compare=False)

    def get_inputs(self) -> Sequence[Port]:
        return self._ports()[0]

    def get_outputs(self) -> Sequence[Port]:
        return self._ports()[1]

    def _ports(self) -> tuple[Sequence[Port], Sequence[Port]]:
        from onnx import GraphProto, ModelProto

        frame = self.program.frame
        graph = GraphProto(input=frame.inputs, output=frame.outputs, initializer=frame.defaults)
        return ports_of(ModelProto(graph=graph))

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Array],
        taken: set[tuple[Node, bool]] | None = None,
        rounded: bool = False,
        field: Reals | None = None,
    ) -> list[Any]:
        """Return outputs as float64, integers and bools in the model's types; for the rest see `evaluate`."""
        from onnx import numpy_helper

        from tensaurus.expr.evaluate.fields import Reals
        from tensaurus.runtimes.backends.reference.evaluation import evaluate, lift_value
        from tensaurus.runtimes.backends.reference.kept_constants import KeptConstants
        from tensaurus.system.child import available_memory

        names = [name for name, _ in self.program.outputs]
        wanted = names if output_names is None else list(output_names)
        if strange := [name for name in wanted if name not in names]:
            raise BackendError(f"reference: no output {strange[0]!r}; the model has {', '.join(names)}")
        inputs = {node.attribute("name"): node.types[0] for node in self.program.inputs}
        if strange := [name for name in feeds if name not in inputs]:
            raise BackendError(f"reference: no input {strange[0]!r}; the model has {', '.join(inputs)}")
        given = {t.name: numpy_helper.to_array(t) for t in self.program.frame.defaults} | dict(feeds)
        if self._constants is None:
            self._constants = KeptConstants(int(KEPT_SHARE * available_memory()))
        # in another field, or rounded, constants have other values
        constants = self._constants if field is None and not rounded else None
        field = Reals() if field is None else field
        for name, value in given.items():
            _require_type(name, inputs[name], value)
        values = {name: lift_value(v, field) for name, v in given.items()}
        found = evaluate(self.program, values, field, taken=taken, rounded=rounded, constants=constants)
        types = {name: node.types[0] for name, node in self.program.outputs}
        return [_to_model_type(found[name], types[name]) for name in wanted]


def _require_type(name: str, kind: Type, value: Any) -> None:
    from tensaurus.ops import TensorType

    if isinstance(kind, TensorType) and isinstance(value, np.ndarray):
        actual = "string" if value.dtype.kind in "OSU" else value.dtype.name
        if actual != kind.dtype:
            raise BackendError(f"reference: input {name!r} is {actual}, the model expects {kind.dtype}")


def _to_model_type(value: Any, kind: Type) -> Any:
    from tensaurus.graph.ir.tensor_data import numpy_dtype
    from tensaurus.ops import TensorType

    if isinstance(value, np.ndarray):
        if isinstance(kind, TensorType) and value.dtype.kind == "i":
            return value.astype(numpy_dtype(kind.dtype))
        return np.array(value)  # the caller owns it
    return value


@dataclass(frozen=True)
class _Reference(Backend):
    name: str = "reference"
    package: str = "tensaurus"
    target: bool = False
    peer: bool = False
    exact: bool = True

    def version(self) -> str:
        return version("numpy")

    def installed(self) -> bool:
        return True

    def compile(self, build: Build, *, threads: int) -> Session:
        """Return a session in float64; the number of threads is that of numpy's BLAS, not `threads`.

        Libraries of kernels are ignored: every operator is computed from its expression.
        """
        from tensaurus.graph.onnx.model_file import load_model
        from tensaurus.graph.onnx.onnx_import import import_model
        from tensaurus.system.errors import TensaurusError

        try:
            proto = build.proto() if isinstance(build.model, bytes) else load_model(build.model)
            return Session(import_model(proto))
        except (TensaurusError, ValueError, RuntimeError) as error:
            raise BackendError(f"reference: {error}") from error
        except Exception as error:  # protobuf's DecodeError
            raise BackendError(f"reference: not an ONNX model: {error}") from error


BACKEND = _Reference()
