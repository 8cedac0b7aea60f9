"""The models that public Python packages ship, with static input shapes for them (`shipped.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pretrained:
    """A model that a package ships as its file `member`.

    Without sha256 it is a test model of the installed onnx, which has no weights: `pretrained` draws some.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes that make every input static, by input name."""
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and largest value of integer inputs, by input name."""


_LIGHT = (  # onnx's test models without weights
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"),
    *("vgg19", "zfnet512"),
)


def _entries() -> Iterator[Pretrained]:
    shipped = tomllib.loads(Path(__file__).with_name("shipped.toml").read_text(encoding="utf-8"))
    for package in shipped["package"]:
        for model in package["model"]:
            yield Pretrained(
                model["name"],
                package["name"],
                package["version"],
                f"{package['folder']}/{model['path']}",
                model["sha256"],
                {name: tuple(shape) for name, shape in model.get("shapes", {}).items()},
                {name: (low, high) for name, (low, high) in model.get("ranges", {}).items()},
            )
    for name in _LIGHT:
        member = f"onnx/backend/test/data/light/light_{name}.onnx"
        yield Pretrained(f"light_{name}", "onnx", onnx.__version__, member)


PRETRAINED: Mapping[str, Pretrained] = {entry.name: entry for entry in _entries()}
