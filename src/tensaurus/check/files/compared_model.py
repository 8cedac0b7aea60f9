"""Holds one of the two models of a comparison, with its sizes fixed and as runtimes load it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from tensaurus.check.inputs.perturbation import perturb_model
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.model_file import TWO_GIGABYTES, load_model
from tensaurus.graph.onnx.onnx_frame import bodies_of
from tensaurus.graph.onnx.weight_files import WeightFiles


@dataclass
class ComparedModel:
    """One model of a comparison.

    name    the model's file, for messages
    proto   the model with its sizes fixed
    build   the unchanged model, as a runtime loads it
    folder  for files of changed copies
    inputs  as the model states them, before sizes were fixed: perturbed copies get these again
    """

    name: str
    proto: ModelProto
    build: Build
    folder: Path
    inputs: tuple[ValueInfoProto, ...] = ()

    @classmethod
    def read(
        cls, given: Path | str | ModelProto | Build, shapes: Mapping[str, Sequence[int]], folder: Path
    ) -> ComparedModel:
        """Load a model and fix the sizes of its inputs in `proto`; `shapes` has them by the inputs' names.

        A model too large for one protobuf message is written to the folder.
        """
        from tensaurus.graph.onnx.value_types import fix_shapes

        name, proto = "the model", ModelProto()
        if isinstance(given, ModelProto):
            proto.CopyFrom(given)
            build = Build.from_model(given, folder)
        elif isinstance(given, Build):
            proto, build = given.proto(), given
        else:
            name, proto, build = str(given), load_model(given), Build.from_file(given)
        inputs = tuple(_copy_value_info(value) for value in proto.graph.input)
        fix_shapes(proto, shapes, None if isinstance(given, ModelProto | Build) else given)
        return cls(name, proto, build, folder, inputs)

    @property
    def is_large(self) -> bool:
        """Whether a changed copy would be too large for one protobuf message."""
        return self.build.total_bytes > TWO_GIGABYTES // 2

    @property
    def has_branches(self) -> bool:
        """Whether the model holds nodes with bodies (If, Loop, Scan), so that branches may be taken."""
        parts = (self.proto.graph, *self.proto.functions)
        return any(True for part in parts for node in part.node for _ in bodies_of(node))

    def perturbed(self, seed: int, kept: Collection[float], folder: Path) -> Build:
        """Build a copy of the model one rounding away (`perturbation`); large weights lie in the folder.

        Single numbers among `kept` stay as they are.
        """
        copy = perturb_model(self.proto, seed, kept, WeightFiles(folder))
        del copy.graph.input[:]
        copy.graph.input.extend(self.inputs)
        return Build.from_model(copy, folder, self.build.libraries)


def _copy_value_info(value: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    return copy
