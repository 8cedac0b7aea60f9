"""Several models on the machines of a Ray cluster, which lose no more than a machine that dies had begun."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from tensaurus.app.cli import cluster_models
from tensaurus.app.cli.app import app
from tensaurus.app.cli.cluster_models import MEASUREMENTS, Finished, Job, Worker, optimize_on_cluster
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.measure.measurement_file import write_measurements

ROW = Measurement("a", "b", "c", "", 1.0)


def save_model(path: Path, *, external: bool = False) -> Path:
    """A Relu twice, of which one is dropped, and a sum with a weight."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy")
    weight = numpy_helper.from_array(np.ones((4, 8), np.float32), "w")
    nodes = [
        helper.make_node("Relu", ["x"], ["t"]),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("Add", ["u", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data", size_threshold=0)
    return path


class Death(Exception):
    """Stands for the error of an actor whose machine is gone."""


class Cluster:
    """A cluster in this process, whose workers answer at once; `dying` numbers the starts that fail."""

    exceptions = SimpleNamespace(RayError=Death)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, machines: int, dying: Sequence[int] = ()):
        self.started: list[Job] = []
        self.dying = dying
        worker = SimpleNamespace(optimize=SimpleNamespace(remote=self.start))
        monkeypatch.setattr(cluster_models, "_start_workers", lambda ray: [worker] * machines)
        monkeypatch.setattr(cluster_models, "_connect", self.connect)

    @contextmanager
    def connect(self, address: str) -> Iterator[Any]:
        assert address == "auto"
        yield self

    def start(self, job: Job) -> int:
        self.started.append(job)
        return len(self.started) - 1

    def wait(self, running: Sequence[int], num_returns: int) -> tuple[list[int], list[int]]:
        return [running[0]], list(running[1:])

    def get(self, number: int) -> Finished:
        if number in self.dying:
            raise Death("the node\nis gone")
        job, path = self.started[number], self.folder / f"{number}.jsonl.gz"
        write_measurements(path, [Measurement("of", job.model, "m", "", 2.0)])
        made = {job.model: b"model", job.model.replace(".onnx", ".kernels.so"): b"library"}
        status = 1 if job.model == "bad.onnx" else 0
        return Finished(status, "said\n", {**made, "summary.json": b"{}"}, path.read_bytes())

    folder: Path


def run(cluster: Cluster, folder: Path, names: Sequence[str]) -> tuple[int, list[str]]:
    """Optimize models of these names; return the exit status and the files that were written."""
    cluster.folder = folder
    models = [save_model(folder / f"{name}.onnx", external=name == "heavy") for name in names]
    rules = folder / "my.rules"
    rules.write_text("")
    out, database = folder / "out", folder / "db.sqlite"
    with Database(database) as rows:
        rows.put(ROW)
    options = ["--rules", str(rules), "--time-limit", "5"]
    outputs = {model: out / model.name for model in models}
    status = optimize_on_cluster(outputs, options, [rules], database, folder / "summaries", "auto")
    written = (path.relative_to(folder) for path in folder.rglob("*") if path.parent != folder)
    return status, sorted(map(str, written))


def test_every_model_is_optimized_with_what_was_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, machines=1)
    status, files = run(cluster, tmp_path, ["one", "heavy"])
    assert status == 0
    made = (f"out/{name}{end}" for name in ("heavy", "one") for end in (".kernels.so", ".onnx"))
    assert files == [*made, "summaries/heavy.json", "summaries/one.json"]
    first, second = cluster.started
    assert first.options == ("--rules", "my.rules", "--time-limit", "5")
    assert sorted(first.files) == [MEASUREMENTS, "my.rules", "one.onnx"]
    assert sorted(second.files) == ["heavy.data", "heavy.onnx", MEASUREMENTS, "my.rules"]
    assert len(second.files[MEASUREMENTS]) > len(first.files[MEASUREMENTS])  # the first machine's, too
    with Database(tmp_path / "db.sqlite") as rows:
        assert {row.workload for row in rows.all()} == {"a", "of"}


@pytest.mark.parametrize(
    ("dying", "status", "starts"),
    [([0], 0, ["one", "two", "one"]), ([0, 2], 1, ["one", "two", "one"]), ([0, 1], 1, ["one", "two"])],
    ids=["once", "twice", "all machines"],
)
def test_a_machine_that_dies_loses_its_model_only(
    dying: list[int], status: int, starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cluster = Cluster(monkeypatch, machines=2, dying=dying)
    found, _ = run(cluster, tmp_path, ["one", "two"])
    assert found == status
    assert [job.model.removesuffix(".onnx") for job in cluster.started] == starts
    told = capsys.readouterr().err
    assert "its machine was lost (the node)" in told
    assert ("no machine is left for" in told) == (dying == [0, 1])


def test_a_model_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(monkeypatch, machines=1)
    assert run(cluster, tmp_path, ["bad", "one"])[0] == 1
    assert len(cluster.started) == 2 and "1 of 2 models were optimized; failed: " in capsys.readouterr().err
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    broken = {tmp_path / "broken.onnx": tmp_path / "out" / "broken.onnx"}
    assert optimize_on_cluster(broken, [], [], tmp_path / "db.sqlite", None, "auto") == 2
    assert len(cluster.started) == 2 and "broken.onnx: is not an ONNX model" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_worker_optimizes_as_the_command_line_does(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.onnx", external=True)
    row = Measurement("w", "b", f"{Machine.here().hardware}, 1 threads", "", 1.0)
    write_measurements(tmp_path / MEASUREMENTS, [row])
    names = ("model.data", MEASUREMENTS)
    files = {"result.onnx": model.read_bytes(), **{name: (tmp_path / name).read_bytes() for name in names}}
    done = Worker().optimize(Job("result.onnx", ("--steps", "2", "--no-custom-ops"), files))
    assert done.status == 0, done.printed
    assert sorted(done.files) == ["result.onnx", "summary.json"] and "proved" in done.printed
    assert len(onnx.load_from_string(done.files["result.onnx"]).graph.node) == 2
    assert json.loads(done.files["summary.json"])["rewrites"]
    assert len(done.measurements) > len(files[MEASUREMENTS])
    refused = Worker().optimize(Job("result.onnx", ("--steps", "none"), files))
    assert refused.status == 2 and sorted(refused.files) == []


def test_without_ray_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_models, "find_spec", lambda name: None)
    model = save_model(tmp_path / "model.onnx")
    command = ["optimize", str(model), "-o", str(tmp_path / "fast.onnx"), "--ray", "auto"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and "pip install 'tensaurus[ray]'" in " ".join(result.output.split())


def graph_of(path: Path) -> bytes:
    """Return the graph of a result without its summary, which has times."""
    return onnx.load(path).graph.SerializeToString()


def test_the_original_is_not_overwritten(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.onnx")
    before = model.read_bytes()
    result = CliRunner().invoke(app, ["optimize", str(model), "-o", str(model), "--ray", "auto"])
    assert result.exit_code == 2 and "ray is not installed" not in result.output
    assert model.read_bytes() == before


@pytest.mark.nightly
def test_two_nodes_give_the_results_of_one_machine(tmp_path: Path) -> None:
    """On a cluster of two nodes on this machine, and after one of them is gone."""
    pytest.importorskip("ray", reason="the extra ray is not installed: make nightly installs it")
    from ray.cluster_utils import Cluster as LocalCluster

    cluster = LocalCluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    try:
        cluster.wait_for_nodes()
        models = [save_model(tmp_path / f"{name}.onnx") for name in ("one", "two", "three")]
        outputs = {model: tmp_path / "out" / model.name for model in models}
        options = ["--steps", "2", "--no-custom-ops", "--threads", "1"]
        assert optimize_on_cluster(outputs, options, [], tmp_path / "db.sqlite", None, cluster.address) == 0
        results = {graph_of(output) for output in outputs.values()}
        assert len(results) == 1
        cluster.remove_node(other)
        again = {model: tmp_path / "again" / model.name for model in models}
        assert optimize_on_cluster(again, options, [], tmp_path / "db.sqlite", None, cluster.address) == 0
        assert {graph_of(output) for output in again.values()} == results
    finally:
        cluster.shutdown()
