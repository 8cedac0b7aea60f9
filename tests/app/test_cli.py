"""The command line as a user meets it: results, one-line errors, exit statuses, files left whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner, Result

import tensaurus
from tensaurus.app.cli import app
from tensaurus.app.cli.options import parse_shapes
from tensaurus.kernels.tune.object_files import objects_folder
from tensaurus.runtimes.measure.database import Database
from tensaurus.system import signals
from tensaurus.system.errors import TensaurusError

COMMANDS = ("optimize", "tune", "verify", "explain", "bench", "db", "zoo")


@pytest.fixture(autouse=True)
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSAURUS_DB", str(tmp_path / "database" / "measurements.sqlite"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, *words: str, status: int = 2) -> None:
    """The last line on stderr is one error with these words; that exit status, no traceback."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    *progress, error = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert not [line for line in progress if "error" in line.lower()]
    for word in words:
        assert word in error


def shell(*arguments: str | Path, **options: object) -> list[str]:
    return [sys.executable, "-m", "tensaurus", *map(str, arguments)]


# Several models


def test_several_models_go_into_a_folder(small_model: Path, tmp_path: Path) -> None:
    """Each with the same options; one that cannot be read is named at the end, and the others are there."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        shutil.copy(small_model, folder / f"{name}.onnx")
    (folder / "c.onnx").write_bytes(b"no model")
    models = [folder / f"{name}.onnx" for name in "abc"]
    options = ["--steps", "1", "--search", "backtracking", "--no-custom-ops", "--json", tmp_path / "json"]
    done = subprocess.run(
        shell("optimize", *models, "-o", tmp_path / "out", *options), capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert f"2 of 3 models are in {tmp_path / 'out'}; failed: {models[2]}" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.onnx", "b.onnx"]
    assert sorted(path.name for path in (tmp_path / "json").iterdir()) == ["a.json", "b.json"]
    assert done.stdout.count("equality") == 2 and "Traceback" not in done.stderr
    assert run("verify", models[0], tmp_path / "out" / "a.onnx").exit_code == 0


def test_one_model_goes_into_a_folder(small_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = run("optimize", small_model, "-o", out, "--steps", "1", "--search", "backtracking", "--quiet")
    assert done.exit_code == 0, done.output
    assert [path.name for path in out.glob("*.onnx")] == [small_model.name]


def test_models_whose_results_would_be_one_file_are_refused(small_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(small_model, tmp_path / name / "m.onnx")
    first, second = tmp_path / "a" / "m.onnx", tmp_path / "b" / "m.onnx"
    before = first.read_bytes()
    assert_refused(run("optimize", first, second, "-o", tmp_path / "out"), "would be one file")
    assert_refused(run("optimize", first, first, "-o", tmp_path / "a"), "would be one file")
    assert_refused(run("optimize", first, second, "-o", second), "not a folder")
    assert first.read_bytes() == before and not (tmp_path / "out").exists()


def test_ctrl_c_finishes_the_model_at_hand_and_begins_no_other(small_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(small_model, tmp_path / f"{name}.onnx")
    words = shell("optimize", tmp_path / "a.onnx", tmp_path / "b.onnx", "-o", tmp_path / "out")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stderr is not None
        heard = ""
        while "searching" not in heard:
            line = process.stderr.readline()
            assert line, heard
            heard += line
        process.send_signal(signal.SIGINT)
        heard += process.stderr.read()
    assert process.returncode == 130, heard
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.onnx"], heard
    assert "b.onnx" not in heard


# Usage


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"tensaurus {tensaurus.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    assert command in run("--help").stdout
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, tensaurus.app.cli as cli\n"
        "try: cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'onnx', 'onnxruntime', 'openvino', 'z3', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimise"],
        ["optimize"],
        ["optimize", "m.onnx"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--threads", "0"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--threads", "two"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--time-limit", "-1"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--threads", "100000"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--alpha", "0.5"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--alpha", "nan"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--time-limit", "nan"],
        ["optimize", "m.onnx", "-o", "f.onnx", "--seed", "-1"],
        ["verify", "a.onnx"],
        ["zoo", "fetch"],
    ],
)
def test_bad_usage(arguments: list[str]) -> None:
    result = run(*arguments)
    assert_refused(result, "--help")
    assert len(result.stderr.splitlines()) == 1


def test_the_module_runs_and_prints_one_line_for_an_error() -> None:
    done = subprocess.run(shell("explain", "absent.onnx"), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: absent.onnx: cannot be read: No such file or directory\n"


def test_optimize_stays_a_function_when_its_module_is_imported() -> None:
    import tensaurus.optimizer.optimize

    assert callable(tensaurus.optimize)
    assert set(tensaurus.__all__) == set(dir(tensaurus))
    for name in tensaurus.__all__:
        assert getattr(tensaurus, name) is not None
    with pytest.raises(AttributeError, match="optimise"):
        tensaurus.optimise  # noqa: B018


# Shapes


def test_parse_shapes() -> None:
    flags = ["x=1,3,48,320", "gpu_0/data=2", "a=b=1, 2", "sr=", "x=1,3,48,320"]
    expected = {"x": (1, 3, 48, 320), "gpu_0/data": (2,), "a=b": (1, 2), "sr": ()}
    assert parse_shapes(flags) == expected


@pytest.mark.parametrize(
    "flag",
    [
        "x",
        "=1,2",
        "x=1,,2",
        "x=1,-2",
        "x=1,2,",
        "x=one",
        "x=1.5",
        "x=0,3",
        "x=²",
        "x=1x3",
        "",
        "x=2147483648",
    ],
)
def test_parse_shapes_refuses(flag: str) -> None:
    with pytest.raises(TensaurusError, match="--shape"):
        parse_shapes([flag])


def test_contradictory_shapes(small_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = run("optimize", small_model, "-o", out, "--shape", "x=1,3", "--shape", "x=2,3")
    assert_refused(result, "x", "two different shapes")
    assert not out.exists()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("y=0,1", ["y", "The model's inputs are: x"]),
        ("x=0,1", ["x", "float"]),
        ("x=1,0", ["LOW,HIGH"]),
        ("x=a", ["LOW,HIGH"]),
        ("x", ["LOW,HIGH"]),
    ],
)
def test_ranges_that_do_not_fit(flag: str, words: list[str], small_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert_refused(optimize(small_model, out, "--range", flag), *words)
    assert not out.exists()
    assert_refused(run("verify", small_model, small_model, "--range", flag), *words)
    assert_refused(run("bench", small_model, "--range", flag), *words)


# The main job


def optimize(model: Path, out: Path, *more: str | Path) -> Result:
    return run("optimize", model, "-o", out, "--time-limit", "5", "--threads", "1", *more)


def test_optimize_verify_explain(small_model: Path, tmp_path: Path) -> None:
    out, record = tmp_path / "fast.onnx", tmp_path / "summary.json"
    result = optimize(small_model, out, "--shape", "x=4,3", "--json", record)
    assert result.exit_code == 0, result.output
    assert all(line == line.rstrip() for line in result.stdout.splitlines())
    assert str(out) in result.stdout
    summary = json.loads(record.read_text())
    assert {
        *("model", "backend", "threads", "original_ms", "optimized_ms", "speedup", "search_seconds"),
        *("measurements", "equivalence", "rewrites"),
    } <= set(summary)
    assert summary["backend"] == "onnxruntime"
    assert summary["threads"] == 1
    assert summary["speedup"] >= 1.0
    assert summary["equivalence"]["passed"] is True
    assert {"max_abs_error", "max_rel_error", "passed"} <= set(summary["equivalence"])
    assert all({"rule", "evidence", "count"} <= set(rewrite) for rewrite in summary["rewrites"])

    verified = run("verify", small_model, out, "--shape", "x=4,3", "--threads", "1")
    assert verified.exit_code == 0, verified.output
    assert verified.stdout.startswith("equal")

    explained = run("explain", out)
    assert explained.exit_code == 0, explained.output
    assert str(out) in explained.stdout.replace("\n", "")

    listed = run("db", "count")
    assert listed.exit_code == 0
    assert int(listed.stdout) >= 0


@pytest.mark.nightly
def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """With one database, one seed and a limit in steps, whatever the seed of Python's hashes is."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        twice (float[1, 8, 24, 24] x) => (float[1, 8, 24, 24] y)
        <float three = {3.0}, float zero = {0.0}, float six = {6.0}, float s = {0.7}, float t = {0.3}>
        {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            m = Mul (c, s)
            a = Add (m, t)
            b = Add (a, three)
            d = Clip (b, zero, six)
            e = Mul (a, d)
            y = Div (e, six)
        }
        """
    )
    weight = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save_model(model, tmp_path / "model.onnx")

    filled = tmp_path / "filled.sqlite"
    command = ["optimize", tmp_path / "model.onnx", "--steps", "6", "--nodes", "500", "--no-custom-ops"]
    first = ("-o", tmp_path / "first.onnx", "--db", filled)
    assert run(*command, *first).exit_code == 0  # tests measure for a short time
    known, more = -1, 0
    while known != more:  # until a process that knows its real peaks has nothing new to measure
        known = more
        subprocess.run(shell(*command, *first, "--quiet"), check=True)
        with Database(filled) as records:
            more = records.count()
    outs = [tmp_path / f"{seed}.onnx" for seed in (1, 2)]
    for out in outs:
        env = {**os.environ, "PYTHONHASHSEED": out.stem}
        database = shutil.copy(filled, out.with_suffix(".sqlite"))  # what is measured depends on what was
        subprocess.run(shell(*command, "-o", out, "--db", database, "--quiet"), env=env, check=True)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_quiet_prints_nothing(small_model: Path, tmp_path: Path) -> None:
    result = optimize(small_model, tmp_path / "fast.onnx", "--shape", "x=4,3", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert (tmp_path / "fast.onnx").is_file()


def test_different_models_are_not_equal(small_model: Path, tmp_path: Path) -> None:
    model = onnx.load_model(small_model)
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[1, 1] += 0.001
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    onnx.save_model(model, tmp_path / "other.onnx")
    result = run("verify", small_model, tmp_path / "other.onnx", "--shape", "x=4,3", "--threads", "1")
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("NOT EQUAL")


def test_rules_are_verified_and_annotated(tmp_path: Path) -> None:
    file = tmp_path / "own.rules"
    file.write_text("# mine\nfine: Add(x, 0) => x\n")
    result = run("rules", "verify", file, "--write")
    assert result.exit_code == 0 and result.stdout.startswith("fine: proved(algebra")
    assert file.read_text().startswith("# mine\nfine: Add(x, 0) => x | proved(algebra")
    file.write_text("bad: Relu(x) => x\n")
    result = run("rules", "verify", file, "--write")
    assert result.exit_code == 1 and "REFUTED" in result.stdout and "1 of 1" in result.stderr
    assert file.read_text() == "bad: Relu(x) => x\n"
    file.write_text("bad: Relu(x) =>\n")
    assert_refused(run("rules", "verify", file), "own.rules")
    file.write_text("add-zero [any]: Add(x, 0) => x | proved(algebra, all sizes)")
    result = run("rules", "verify", file)
    assert result.exit_code == 1 and "though its file says proved" in result.output
    assert_refused(run("rules", "verify", tmp_path / "none.rules"), "none.rules", "cannot be read")


def test_bench(small_model: Path, tmp_path: Path) -> None:
    table, page = tmp_path / "t.csv", tmp_path / "page.md"
    options = ["--shape", "x=4,3", "--peers", "onnxruntime", "--threads", "1", "--rounds", "2"]
    result = run("bench", small_model, *options, "--ours", "none", "--csv", table)
    assert result.exit_code == 0, result.output
    assert "1.00x" in result.stdout and "onnxruntime" in result.stdout
    assert result.stdout.endswith("1 thread, 2 rounds\n")
    assert table.read_text().count("\n") == 2
    again = run("bench", small_model, *options, "--csv", table, "--resume", "--time-limit", "1")
    assert again.exit_code == 0 and again.stdout == ""
    pytest.importorskip("matplotlib")
    result = run("bench", "--csv", table, "--report", page)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert str(small_model) in page.read_text() and (page.with_suffix("") / "roofline.png").is_file()


def test_bench_beside_the_optimizer(small_model: Path) -> None:
    result = run("bench", small_model, "--peers", "onnxruntime", "--rounds", "1", "--time-limit", "1")
    assert result.exit_code == 0, result.output
    assert "timed with x=1,3" in result.stderr
    assert "tensaurus on onnxruntime" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no model to measure", "--csv"]),
        (["resnet5"], ["no model of the zoo is called resnet5", "resnet50"]),
        (["resnet50@x"], ["NAME@BATCH"]),
        (["nowhere.onnx"], ["nowhere.onnx"]),
        (["nasrnn", "--resume"], ["--resume needs a CSV file", "--csv"]),
        (["--report", "page.md"], ["--report needs a CSV file"]),
        (["nasrnn", "--peers", "nonesuch"], ["nonesuch"]),
        (["nasrnn", "--ours", "reference"], ["--ours reference"]),
        (["nasrnn", "--peers", "none"], ["--peers"]),
    ],
)
def test_bench_refuses(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("bench", *arguments), *words)


def test_bench_refuses_a_foreign_table(small_model: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("name,ms\na,1\n")
    result = run("bench", small_model, "--csv", table)
    assert_refused(result, str(table), "is not a table that `tensaurus bench --csv` wrote")
    assert table.read_text() == "name,ms\na,1\n"


def test_bench_skips_models_that_do_not_run(small_model: Path, tmp_path: Path) -> None:
    """A contender may refuse the model; a model that no backend runs is an error."""
    foreign = foreign_model(small_model, tmp_path)
    assert_refused(run("bench", foreign, "--peers", "onnxruntime"), str(foreign), "com.acme:Relu")
    options = ["--peers", "onnxruntime", "--ours", "none", "--rounds", "1"]
    result = run("bench", small_model, "--against", foreign, *options)
    assert result.exit_code == 0, result.output
    assert f"{foreign} on onnxruntime is left out of the comparison" in result.stderr
    both = run("bench", small_model, foreign, *options)
    assert both.exit_code == 2 and "1 of 2 models could not be measured" in both.stderr
    assert "1.00x" in both.stdout


def test_zoo_build(tmp_path: Path) -> None:
    file = tmp_path / "rnn.onnx"
    result = run("zoo", "build", "nasrnn", "--batch", "2", "-o", file)
    assert (result.exit_code, result.stdout) == (0, f"wrote {file}\n"), result.output
    assert onnx.load_model(file).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert_refused(run("zoo", "build", "nasrn", "-o", file), "no model of the zoo is called nasrn", "nasrnn")
    assert_refused(run("zoo", "build", "magika", "-o", file), "zoo fetch magika")
    assert_refused(run("zoo", "build", "nasrnn", "-o", tmp_path / "no" / "a.onnx"), "a.onnx")


def test_zoo_list_names_everything() -> None:
    from tensaurus.app.zoo.catalog import workloads
    from tensaurus.app.zoo.pretrained import PRETRAINED

    lines = run("zoo", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*workloads(), *PRETRAINED]


def foreign_model(small_model: Path, folder: Path) -> Path:
    """A model with an operator of a domain that no runtime knows."""
    model = onnx.load_model(small_model)
    model.graph.node[1].domain = "com.acme"
    model.opset_import.add(domain="com.acme", version=1)
    onnx.save_model(model, folder / "foreign.onnx")
    return folder / "foreign.onnx"


def test_an_operator_that_the_runtime_lacks_is_one_line(small_model: Path, tmp_path: Path) -> None:
    foreign = foreign_model(small_model, tmp_path)
    assert_refused(optimize(foreign, tmp_path / "out.onnx"), str(foreign), "com.acme:Relu")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("command", ["optimize", "verify", "bench"])
def test_an_unknown_or_missing_backend(
    command: str, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    more = {"optimize": ["-o", tmp_path / "out.onnx"], "verify": [small_model], "bench": []}[command]
    option = "--peers" if command == "bench" else "--backend"
    assert_refused(run(command, small_model, *more, option, "openvino"), "openvino is not installed")
    assert_refused(run(command, small_model, *more, option, "nonesuch"), "unknown backend 'nonesuch'")
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_whose_inputs_cannot_be_generated_is_unchanged(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        sequence (seq(float[2, 3]) s) => (float[n, 3] y)
        {
            whole = ConcatFromSequence <axis = 0> (s)
            y = Relu (whole)
        }
        """
    )
    onnx.save_model(model, tmp_path / "sequence.onnx")
    out, record = tmp_path / "out.onnx", tmp_path / "out.json"
    result = optimize(tmp_path / "sequence.onnx", out, "--json", record)
    assert result.exit_code == 0, result.output
    assert "input s is not a tensor" in result.stderr
    assert "not measured" in result.stdout
    assert onnx.load_model(out).graph == model.graph
    assert json.loads(record.read_text())["original_ms"] is None
    explained = run("explain", out)
    assert "because it could not be run" in " ".join(explained.stdout.split())


def test_bench_names_an_unknown_backend(small_model: Path) -> None:
    assert_refused(run("bench", small_model, "--shape", "x=4,3", "--peers", "nonesuch"), "nonesuch")


def test_ctrl_c_keeps_the_best_so_far(pretrained: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "fast.onnx"
    command = shell(
        "optimize", pretrained("ppocr_cls"), "--shape", "x=1,3,48,192", "-o", out, "--time-limit", "300"
    )
    started = time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None
        heard = ""
        while not heard.endswith("searching\n"):
            heard += process.stderr.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said, more = process.communicate(timeout=240)
    assert process.returncode == 0, heard + more
    assert "Traceback" not in more
    assert [line for line in more.splitlines() if "interrupted" in line] == [signals.INTERRUPT_MESSAGE]
    assert out.is_file()
    assert str(out) in said
    assert time.monotonic() - started < 240


def test_a_second_ctrl_c_quits(pretrained: Callable[[str], Path], tmp_path: Path) -> None:
    """At once, in one line, without an output, and no worker lives on."""
    command = shell(
        "optimize", pretrained("ppocr_cls"), "--shape", "x=1,3,48,192", "-o", tmp_path / "fast.onnx"
    )
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None
        heard = []
        for line in process.stderr:
            heard.append(line)
            if "] searching" in line:
                time.sleep(1)
                process.send_signal(signal.SIGINT)
            if "] measuring" in line:
                time.sleep(0.5)
                workers = children(process.pid)
                process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert (process.returncode, said) == (130, ""), heard
    assert heard[-1] == "interrupted: nothing was written\n"
    assert not [line for line in heard if "Traceback" in line]
    assert [path.name for path in tmp_path.iterdir()] == ["database"]
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[str]:
    return [
        word for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()
    ]


# Bad input


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))


def unknown_operator(path: Path) -> None:
    model = onnx.load_model(path)
    model.graph.node[1].op_type = "Rellu"
    model.graph.node[1].name = "activation"
    onnx.save_model(model, path)


def missing_external_data(path: Path) -> None:
    model = onnx.load_model(path)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()


def escaping_external_data(path: Path) -> None:
    model = onnx.load_model(path)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load_model(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../weights.bin"
    path.write_bytes(model.SerializeToString())
    (path.parent / "weights.bin").rename(path.parent.parent / "weights.bin")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, []),
        (truncate, []),
        (overwrite, []),
        (unknown_operator, ["Rellu"]),
        (missing_external_data, ["weights.bin"]),
        (escaping_external_data, ["weights.bin"]),
    ],
)
def test_bad_models_are_one_line(
    damage: Callable[[Path], None], words: list[str], small_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = small_model.rename(folder / "model.onnx")
    damage(model)
    out = tmp_path / "out.onnx"
    assert_refused(optimize(model, out, "--shape", "x=4,3"), str(model), *words)
    assert not out.exists()
    assert_refused(run("verify", model, model, "--shape", "x=4,3"), str(model), *words)


@pytest.mark.parametrize(
    ("shape", "words"),
    [("y=1,2", ["y"]), ("x=1,2,3", ["x"]), ("x=4,5", ["x"])],
)
def test_shapes_that_contradict_the_model(
    shape: str, words: list[str], small_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    assert_refused(optimize(small_model, out, "--shape", shape), str(small_model), *words)
    assert not out.exists()


def test_an_output_that_cannot_be_written_is_refused_at_once(small_model: Path, tmp_path: Path) -> None:
    """Before the model is even read: it does not exist here."""
    for out in (tmp_path / "no" / "folder.onnx", Path("/dev/null"), small_model / "x.onnx"):
        assert_refused(run("optimize", "absent.onnx", "-o", out), str(out), "cannot be written")
        assert_refused(run("optimize", "absent.onnx", "-o", tmp_path / "x", "--json", out), str(out))
    assert not Path("/dev/null").is_file()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "database") == ["small.onnx"]


def test_one_file_for_two_options_is_refused(small_model: Path, tmp_path: Path) -> None:
    before = small_model.read_bytes()
    (tmp_path / "link").symlink_to(small_model)
    out = tmp_path / "out.onnx"
    for more in ([small_model], [tmp_path / "link"], [out, "--json", small_model], [out, "--json", out]):
        assert_refused(optimize(small_model, *more), "name the same file")
    for file in (small_model, out):
        assert_refused(optimize(small_model, out, "--db", file), "name the same file")
    assert small_model.read_bytes() == before
    assert not out.exists()


def test_the_old_output_stays_whole_when_the_job_fails(small_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    out.write_bytes(b"the old file")
    truncate(small_model)
    assert_refused(optimize(small_model, out))
    assert out.read_bytes() == b"the old file"


def test_explain_needs_a_summary(small_model: Path, tmp_path: Path) -> None:
    assert_refused(run("explain", small_model), str(small_model), "carries no summary")
    model = onnx.load_model(small_model)
    for broken in ("{", "[]", "{}", '{"equivalence": 3}'):
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, {"tensaurus": broken})
        onnx.save_model(model, tmp_path / "broken.onnx")
        assert_refused(run("explain", tmp_path / "broken.onnx"), "broken.onnx", "is damaged")


# Databases and the zoo


def test_database_commands(tmp_path: Path) -> None:
    from tensaurus.runtimes.measure.database import Database, Measurement

    file = tmp_path / "times.sqlite"
    with Database(file) as database:
        database.put(Measurement("Relu(f32[2])\nand more", "onnxruntime 1", "a machine", "", 0.0015))
    assert run("db", "path", "--db", file).stdout == f"{file}\n"
    assert run("db", "count", "--db", file).stdout == "1\n"
    assert (
        run("db", "list", "--db", file).stdout == "1.5\tonnxruntime 1\ta machine\t\tRelu(f32[2]) and more\n"
    )
    assert CliRunner().invoke(app, ["db", "clear", "--db", str(file)], input="n\n").exit_code == 1
    assert run("db", "count", "--db", file).stdout == "1\n"
    (objects_folder(file) / "version").mkdir(parents=True)
    assert run("db", "clear", "--yes", "--db", file).stdout == "deleted 1 measurements\n"
    assert not objects_folder(file).exists()  # compiled kernels go with the measurements
    assert run("db", "count", "--db", file).stdout == "0\n"
    assert run("db", "path").stdout == os.environ["TENSAURUS_DB"] + "\n"


def test_measurements_move_between_machines_of_one_kind(tmp_path: Path) -> None:
    from tensaurus.runtimes.measure.database import Database, Measurement
    from tensaurus.runtimes.measure.machine import Machine

    here, text = Machine.here(1), tmp_path / "times.jsonl.gz"
    first, second, third = (tmp_path / f"{name}.sqlite" for name in ("first", "second", "third"))
    with Database(first) as database:
        for device in (here.key, f"{here.hardware}, 9 threads", f"{here.hardware}0, 1 threads"):
            database.put(Measurement("Relu", "onnxruntime 1", device, "", 0.5))
    assert run("db", "export", text, "--db", first).stdout == f"wrote 3 measurements to {text}\n"
    for command, source in (("import", text), ("merge", first)):
        added = run("db", command, source, "--db", second).stdout
        assert f"added {2 if command == 'import' else 0} of 2 measurements to {second}\n" in added
        assert f"left out 1 measurements of another kind of machine: {here.hardware}0, 1 threads\n" in added
    assert "added 1 of 3" in run("db", "merge", first, "--any-machine", "--db", second).stdout
    assert run("db", "list", "--db", second).stdout == run("db", "list", "--db", first).stdout
    (tmp_path / "broken.jsonl").write_text("[]")
    refused = run("db", "import", text, tmp_path / "broken.jsonl", "--db", third)
    assert_refused(refused, "broken.jsonl", "is not an export of measurements")
    assert not third.exists()  # all files or none
    assert_refused(run("db", "merge", tmp_path / "broken.jsonl", "--db", third), "broken.jsonl")
    assert_refused(run("db", "export", tmp_path / "no" / "folder", "--db", first), "there is no folder")


FORM = "float32 sum[9 over 4] of o0[9:1*0, 4:1*1], with 0 dear functions"


@pytest.mark.skipif(find_spec("halide") is None, reason="no kernels")
def test_tuned_schedules_are_written_as_a_file_that_ships(tmp_path: Path) -> None:
    from tensaurus.kernels.tune.reduction_histories import REDUCTION_ROWS
    from tensaurus.kernels.tune.tune import Tuner
    from tensaurus.runtimes.measure.database import Database
    from tensaurus.runtimes.measure.machine import Machine

    file, rows = tmp_path / "class.jsonl", {"row(w=8/8, p=0)": 2.0, "row(w=16/8, p=0)": 1.0, "": 3.25}
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, Machine.here(), "native")
        tuner._store_times(f"{REDUCTION_ROWS}{FORM}", rows)
    written = run("db", "schedules", file, "--db", tmp_path / "db.sqlite").stdout
    assert written == f"wrote schedules for {tuner.processor_class} to {file} (reduction forms: 1)\n"
    head, form = map(json.loads, file.read_text().splitlines())
    assert head == {"machine": tuner.machine.key, "compiler": tuner.backend}
    assert form == [FORM, 3.2, form[2], ["row(w=16/8, p=0)", "row(w=8/8, p=0)"]] and form[2] > 0
    empty = tmp_path / "empty.sqlite"
    assert_refused(run("db", "schedules", file, "--db", empty), "empty.sqlite", "no kernel was tuned")


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    assert_refused(run("db", "count", "--db", tmp_path), str(tmp_path))


def test_zoo_list_and_fetch(pretrained: Callable[[str], Path], tmp_path: Path) -> None:
    listed = run("zoo", "list").stdout
    assert "ppocr_rec                rapidocr-onnxruntime 1.4.4  --shape x=1,3,48,320\n" in listed
    result = run("zoo", "fetch", "light_squeezenet", "--folder", tmp_path)
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'light_squeezenet.onnx'}\n"
    assert (tmp_path / "light_squeezenet.onnx").read_bytes() == pretrained("light_squeezenet").read_bytes()
    assert_refused(run("zoo", "fetch", "nonesuch"), "nonesuch", "tensaurus zoo list")


# Mutants


def test_mutate_prints_mutants_with_their_boxes_and_corrections() -> None:
    operator = ("Conv", "f32[4,1,4,4]", "f32[1,1,3,3]", "pads=(1,1,1,1)")
    result = run("mutate", *operator, "--seconds", "3", "--top", "12")
    assert result.exit_code == 0, result.output
    assert "candidates evaluated" in result.stdout
    assert "corrected: [" in result.stdout
    assert "# is corrected" in result.stdout


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (("Relu", "f32[2,3]"), ("Relu is no sum of products",)),
        (("Convolve", "f32[2,3]"), ("Convolve is neither an ONNX file nor the name of an operator",)),
        (("Conv", "f32[2,3]", "f32[4]"), ("For example: tensaurus mutate Conv",)),
        (("absent.onnx",), ("absent.onnx",)),
    ],
)
def test_mutate_refuses_what_it_cannot_look_at(subject: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_refused(run("mutate", *subject), *words)
