"""Inputs of the caller's own: what does not fit is one line, what fits is timed on and compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from typer.testing import CliRunner

from tensaurus.app.cli import app
from tensaurus.check import verify
from tensaurus.check.inputs.timing_inputs import draw_timing_inputs
from tensaurus.check.inputs.user_inputs import load_user_inputs
from tensaurus.graph.onnx.build import Build
from tensaurus.optimizer.optimize import optimize
from tensaurus.runtimes import backends
from tensaurus.system.errors import TensaurusError


def parsed(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> net {text}')


MODEL = parsed("(float[n, 3] x, int64[n] k) => (float[n, 3] y) { f = Cast <to = 1> (k) y = Relu (x) }")
X, K = np.ones((2, 3), np.float32), np.array([4, 5])


def given(inputs: Any, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return load_user_inputs(inputs, MODEL, shapes)


def test_what_fits_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=X, k=K)
    for inputs in ({"x": X, "k": K}, path, str(path)):
        found = given(inputs, x=(2, 3))
        assert sorted(found) == ["k", "x"] and found["x"].dtype == np.float32
        np.testing.assert_array_equal(found["k"], K)
    assert given(None) == {}
    empty = given({"x": X[:0], "k": K[:0]})
    assert empty["x"].shape == (0, 3)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": X}, "input k is missing. Give an array for each of: x, k"),
        ({}, "input x is missing"),
        ({"x": X, "k": K, "z": X}, "the model has no input z. Its inputs are: x, k"),
        ({"x": X.astype(float), "k": K}, 'input x is float64, the model expects float32. Convert it: array'),
        ({"x": X, "k": K.astype(np.int32)}, "input k is int32, the model expects int64"),
        ({"x": X[0], "k": K}, "input x has shape [3], the model expects [?, 3]"),
        ({"x": X[:, :2], "k": K}, "input x has shape [2, 2], the model expects [?, 3]"),
        ({"x": X, "k": np.array(4)}, "input k has shape [], the model expects [?]"),
        ({"x": np.array(["a"]), "k": K}, "input x is <U1, the model expects float32"),
    ],
)
def test_what_does_not_fit_is_one_line(inputs: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(TensaurusError) as caught:
        given(inputs)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
    path = tmp_path / "data.npz"
    np.savez(path, **inputs)
    with pytest.raises(TensaurusError) as caught:
        given(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_a_size_that_was_fixed_counts() -> None:
    with pytest.raises(TensaurusError, match=r"input x has shape \[2, 3\], the model expects \[5, 3\]"):
        given({"x": X, "k": K}, x=(5, 3))


def broken_files(folder: Path) -> dict[str, Path]:
    whole = folder / "whole.npz"
    np.savez(whole, x=X, k=K)
    objects = np.array([{}], object)
    names = ("missing", "text", "cut", "one", "objects", "empty", "folder")
    made = {name: folder / f"{name}.npz" for name in names}
    made["text"].write_text("x = 1")
    made["cut"].write_bytes(whole.read_bytes()[:100])
    with made["one"].open("wb") as file:
        np.save(file, X)
    np.savez(made["objects"], x=objects, k=K)
    made["empty"].write_bytes(b"")
    made["folder"].mkdir()
    return made


def test_what_is_no_file_of_inputs_is_one_line(tmp_path: Path) -> None:
    for name, path in broken_files(tmp_path).items():
        with pytest.raises(TensaurusError) as caught:
            given(path)
        line = str(caught.value)
        assert line.startswith(f"{path}: ") and "\n" not in line and "numpy.savez" in line, name


def test_text_is_given_as_text() -> None:
    model = parsed("(string[n] t) => (string[n] y) { y = Identity (t) }")
    for array in (np.array(["a", "bc"]), np.array(["a", "bc"], object)):
        assert load_user_inputs({"t": array}, model, {})["t"].dtype == object
    with pytest.raises(TensaurusError, match="input t is int64, the model expects strings"):
        load_user_inputs({"t": K}, model, {})


def test_an_input_with_a_default_may_be_given() -> None:
    model = parsed("(float[3] x, float[3] w) => (float[3] y) { y = Add (x, w) }")
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]))
    x = np.ones(3, np.float32)
    assert sorted(load_user_inputs({"x": x}, model, {})) == ["x"]
    assert sorted(load_user_inputs({"x": x, "w": x}, model, {})) == ["w", "x"]
    assert verify(model, model, threads=1, kinds=("random",), inputs={"x": x, "w": x}).passed


@pytest.mark.parametrize("backend", backends.targets())
def test_models_are_timed_on_what_is_given(backend: str) -> None:
    model = parsed("(float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }")
    build = Build(model.SerializeToString())
    feeds, words, _ = draw_timing_inputs(model, {}, 0, build, backend, 1, given={"x": X})
    assert feeds["x"] is X and words == ""


def test_what_does_not_run_on_what_is_given_is_one_line() -> None:
    """openvino, for one, computes something where sizes do not fit."""
    add = "{ s = Constant <value_floats = [7.0, 5.0, 1.0, 2.0]> () y = Add (x, s) }"
    bad = parsed(f"(float[n, m] x) => (float[p, q] y) {add}")
    with pytest.raises(TensaurusError, match="^onnxruntime does not run the model on the given") as caught:
        draw_timing_inputs(bad, {}, 0, Build(bad.SerializeToString()), "onnxruntime", 1, given={"x": X})
    assert "\n" not in str(caught.value)
    with pytest.raises(TensaurusError, match="the original does not run on the inputs given: "):
        verify(bad, bad, threads=1, inputs={"x": X})


RARE = "(float[n, 3] x) => (float[n, 3] y) { c = Constant <value_float = 1000.5> () b = Abs (c) %s }"
KINDS = ("random", "blocks", "zeros")


def test_a_difference_on_what_is_given_alone_is_found() -> None:
    """A jump where none of these inputs are."""
    jump = parsed(RARE % "g = Greater (x, b) z = Neg (x) y = Where (g, z, x)")
    plain = parsed(RARE % "y = Identity (x)")
    beyond = {"x": np.full((4, 3), 2000.0, np.float32)}
    assert verify(jump, plain, threads=1, kinds=KINDS).passed
    verdict = verify(jump, plain, threads=1, kinds=KINDS, inputs=beyond)
    assert not verdict.passed and "on given inputs" in verdict.detail and verdict.inputs[0] == "given"
    same = verify(jump, jump, threads=1, kinds=KINDS, inputs=beyond)
    assert same.passed and {"given", *KINDS} <= {kind.split()[0] for kind in same.inputs}


def test_inputs_that_are_given_are_enough() -> None:
    """Where the model runs on nothing that is made up."""
    text = "(float[n] x, int64[k] s) => (float[a, b] y) { y = Reshape (x, s) }"
    model = parsed(text)
    with pytest.raises(TensaurusError, match="does not run on generated inputs"):
        verify(model, model, threads=1, kinds=KINDS, ranges={"s": (1000, 1000)})
    inputs = {"x": np.ones(6, np.float32), "s": np.array([2, 3])}
    verdict = verify(model, model, threads=1, kinds=KINDS, ranges={"s": (1000, 1000)}, inputs=inputs)
    assert verdict.passed and verdict.inputs == ("given",)
    assert any("does not run on generated inputs" in note for note in verdict.notes)


def test_a_result_is_optimized_on_what_is_given(tmp_path: Path) -> None:
    text = "(float[n, 3] x, int64[n] k) => (float[n, 3] y) { z = Cast <to = 1> (x) y = Relu (z) }"
    result = optimize(parsed(text), inputs={"x": X, "k": K}, steps=3, threads=1, database=tmp_path / "db")
    assert result.summary.equivalence.passed
    with pytest.raises(TensaurusError, match="input k is missing"):
        optimize(parsed(text), inputs={"x": X}, steps=3, threads=1, database=tmp_path / "db")


# The command line


@pytest.fixture(autouse=True)
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSAURUS_DB", str(tmp_path / "database" / "measurements.sqlite"))


def test_on_the_command_line(tmp_path: Path) -> None:
    """A batch that is open needs no --shape: it is said at which sizes it was timed, and stays open."""
    model, fast, data = (tmp_path / name for name in ("model.onnx", "fast.onnx", "data.npz"))
    body = "{ z = Cast <to = 1> (x) y = Relu (z) }"
    onnx.save(parsed(f"(float[batch, 3] x) => (float[batch, 3] y) {body}"), model)
    np.savez(data, x=X)

    def run(*arguments: str | Path) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    common = ("--steps", "3", "--threads", "1")
    done = run("optimize", model, "-o", fast, *common)
    assert done.exit_code == 0, done.output
    assert "optimized for x=1,3" in done.stderr
    assert onnx.load(fast).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    done = run("optimize", model, "-o", fast, *common, "--inputs", data)
    assert done.exit_code == 0 and "timed with" not in done.stderr
    assert run("verify", model, fast, "--inputs", data, "--threads", "1").exit_code == 0
    np.savez(data, x=X.astype(np.float64))
    for arguments in (("optimize", model, "-o", fast), ("verify", model, fast)):
        refused = run(*arguments, "--inputs", data)
        assert refused.exit_code == 2
        assert f"{data}: input x is float64, the model expects float32" in refused.stderr.splitlines()[-1]


def test_a_model_that_runs_on_nothing_made_up_says_what_to_give() -> None:
    text = "(float[n, m] x, int64[2] s) => (float[a, b] y) { y = Reshape (x, s) }"
    with pytest.raises(TensaurusError, match=r"\(--shape x=\.\.\.\) or your own inputs \(--inputs"):
        optimize(parsed(text), ranges={"s": (1000, 1000)}, time_limit=2)
    fixed = "(float[6] x, int64[2] s) => (float[a, b] y) { y = Reshape (x, s) }"
    with pytest.raises(TensaurusError, match=r"Give your own inputs \(--inputs data.npz\)"):
        verify(parsed(fixed), parsed(fixed), threads=1, kinds=KINDS, ranges={"s": (1000, 1000)})
