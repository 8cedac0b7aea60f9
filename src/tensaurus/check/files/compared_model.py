"""A model that is compared, and how a runtime gets it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from tensaurus.check.inputs.perturbation import perturbed_model
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.model_file import TWO_GIGABYTES, load_model
from tensaurus.graph.onnx.onnx_frame import bodies_of
from tensaurus.graph.onnx.weight_files import Weights


@dataclass
class Model:
    """A model with its sizes fixed, and how a runtime gets it: as it is, its inputs as it states them; and a
    folder for what is made of it."""

    name: str
    proto: ModelProto
    build: Build
    folder: Path
    inputs: tuple[ValueInfoProto, ...] = ()

    @classmethod
    def read(
        cls, given: Path | str | ModelProto | Build, shapes: Mapping[str, Sequence[int]], folder: Path
    ) -> Model:
        """Load it and fix sizes in `proto`; a model too large for one message is written to the folder."""
        from tensaurus.graph.onnx.value_types import fix_shapes

        name, proto = "the model", ModelProto()
        if isinstance(given, ModelProto):
            proto.CopyFrom(given)
            build = Build.of(given, folder)
        elif isinstance(given, Build):
            proto, build = given.proto(), given
        else:
            name, proto, build = str(given), load_model(given), Build.at(given)
        inputs = tuple(_copied(value) for value in proto.graph.input)
        fix_shapes(proto, shapes, None if isinstance(given, ModelProto | Build) else given)
        return cls(name, proto, build, folder, inputs)

    @property
    def large(self) -> bool:
        """Whether a changed copy would be too large to be sent."""
        return self.build.whole_size > TWO_GIGABYTES // 2

    @property
    def branches(self) -> bool:
        """Whether there may be any in it."""
        parts = (self.proto.graph, *self.proto.functions)
        return any(True for part in parts for node in part.node for _ in bodies_of(node))

    def perturbed(self, seed: int, kept: Collection[float], folder: Path) -> Build:
        """The model one rounding away, as a runtime gets it, large weights in the folder (`perturbation`)."""
        made = perturbed_model(self.proto, seed, kept, Weights(folder))
        del made.graph.input[:]
        made.graph.input.extend(self.inputs)
        return Build.of(made, folder, self.build.libraries)


def _copied(value: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    return copy
