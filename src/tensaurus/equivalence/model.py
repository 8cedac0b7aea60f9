"""A model that is compared, and how a runtime gets it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, ValueInfoProto

from tensaurus.equivalence.perturbation import perturbed_model
from tensaurus.graph.frame import bodies_of

LARGE = 2**31 - 2**20  # bytes that a model may have to be sent to a runtime without a file


@dataclass
class Model:
    """A model with its sizes fixed, and how a runtime gets it: as it is, its inputs as it states them."""

    name: str
    proto: ModelProto
    source: bytes | Path
    inputs: tuple[ValueInfoProto, ...] = ()

    @classmethod
    def read(cls, given: Path | str | ModelProto, shapes: Mapping[str, Sequence[int]], spare: Path) -> Model:
        """Load it and fix sizes in `proto`; `spare` is a free path for a model too large for one message."""
        from tensaurus.graph.inference import fix_shapes
        from tensaurus.graph.model_file import load_model, save_model

        if isinstance(given, ModelProto):
            name, proto = "the model", ModelProto()
            proto.CopyFrom(given)
            fix_shapes(proto, shapes)
            if given.ByteSize() < LARGE:
                return cls(name, proto, given.SerializeToString(), tuple(given.graph.input))
            save_model(given, spare)
            return cls(name, proto, spare, tuple(given.graph.input))
        proto = load_model(given)
        inputs = tuple(_copied(value) for value in proto.graph.input)
        fix_shapes(proto, shapes, given)
        return cls(str(given), proto, Path(given), inputs)

    @property
    def large(self) -> bool:
        """Whether a changed copy would be too large to be sent."""
        return bool(self.proto.ByteSize() > LARGE // 2)

    @property
    def branches(self) -> bool:
        """Whether there may be any in it."""
        parts = (self.proto.graph, *self.proto.functions)
        return any(True for part in parts for node in part.node for _ in bodies_of(node))

    def perturbed(self, seed: int, kept: Collection[float]) -> bytes:
        """The model one rounding away, as a runtime gets it; see `perturbation`."""
        made = perturbed_model(self.proto, seed, kept)
        del made.graph.input[:]
        made.graph.input.extend(self.inputs)
        return bytes(made.SerializeToString())


def _copied(value: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    return copy
