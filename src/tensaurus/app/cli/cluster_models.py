"""Optimizes several models on the machines of a Ray cluster.

    tensaurus optimize models/*.onnx -o out/ --ray auto

Each machine has one worker with all of its processors, as models that are measured side by side would
disturb each other.  Only machines of one kind take part: measurements and tuned kernels are valid on their
kind alone.  A worker begins a model with all measurements made so far, and what it measures is added to this
machine's database.  A model whose worker dies is begun once more on another one; the others lose nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from tensaurus.app.cli.many_models import RUN_MODEL
from tensaurus.system.errors import TensaurusError
from tensaurus.system.files import replace_file
from tensaurus.system.scratch import temporary_folder

__all__ = ["optimize_on_cluster"]

MAX_STARTS = 2  # of one model: a second time where the first worker died
START_SECONDS = 120.0  # after which machines whose processors are taken by others are not waited for
DIED = 1  # exit status of a model whose workers died
DATABASE = "measurements.sqlite"  # a worker's own, in the folder of one model
MEASUREMENTS = "measurements.jsonl.gz"  # rows of the database, on their way from machine to machine
SUMMARY = "summary.json"  # of one model, in its folder of results
INPUT_FOLDER, OUTPUT_FOLDER = "in", "out"  # in the folder of one model


@dataclass(frozen=True)
class Job:
    """One model to optimize on another machine.

    model    name of its file among `files`
    options  of the command line; files in them are among `files`, too, with their names alone
    files    contents by name: the model, its external data, the files of options, and measurements so far
    """

    model: str
    options: tuple[str, ...]
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Finished:
    """What one machine answers: exit status, what the run printed, its files, and measurements, if any."""

    status: int
    printed: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    measurements: bytes = b""


class Worker:
    """Runs jobs on one machine, each in a process of its own; Ray makes an actor of this class."""

    def hardware(self) -> str:
        """Return the kind of the machine."""
        from tensaurus.runtimes.measure.machine import Machine

        return Machine.here().hardware

    def optimize(self, job: Job) -> Finished:
        """Optimize one model, in a folder that is removed afterwards."""
        with temporary_folder() as folder:
            inputs, outputs = folder / INPUT_FOLDER, folder / OUTPUT_FOLDER
            for each in (inputs, outputs):
                each.mkdir()
            for file, content in job.files.items():
                path = inputs / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            own = ["--db", str(folder / DATABASE)]
            _run_tensaurus(["db", "import", MEASUREMENTS, *own], inputs)
            output = str(outputs / job.model)
            own += ["--json", str(outputs / SUMMARY)]
            done = _run_tensaurus(["optimize", job.model, "--output", output, *own, *job.options], inputs)
            _run_tensaurus(["db", "export", str(folder / MEASUREMENTS), *own[:2]], inputs)
            made = {path.name: path.read_bytes() for path in sorted(outputs.iterdir()) if path.is_file()}
            exported = folder / MEASUREMENTS
            return Finished(
                done.returncode, done.stdout, made, exported.read_bytes() if exported.exists() else b""
            )


def _run_tensaurus(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN_MODEL.format(pid=os.getpid()), *arguments]
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def optimize_on_cluster(
    outputs: Mapping[Path, Path],
    options: Sequence[str],
    option_files: Sequence[Path],
    database: Path | None,
    summaries: Path | None,
    address: str,
) -> int:
    """Optimize each model on a machine of the cluster; return the first failure's exit status, or 0.

    outputs       the file of each model's result
    options       of the command line, without those of files that differ from model to model
    option_files  files that the options name
    summaries     the file of a model's summary as JSON, or of several models a folder
    address       of the cluster: host:port, auto for one on this machine, local for this machine alone
    """
    failures = dict[Path, int]()
    for folder in {output.parent for output in outputs.values()}:
        folder.mkdir(parents=True, exist_ok=True)
    if summaries is not None and len(outputs) > 1:
        summaries.mkdir(parents=True, exist_ok=True)
    with _connect(address) as ray:
        idle = _start_workers(ray)
        starts = Counter[Path]()
        waiting, running = deque(outputs), dict[Any, tuple[Any, Path]]()
        while waiting or running:
            while waiting and idle:
                model, worker = waiting.popleft(), idle.pop()
                starts[model] += 1
                try:
                    job = _make_job(model, outputs[model], options, option_files, database)
                except TensaurusError as error:
                    typer.echo(f"== {model}: {error}", err=True)
                    failures[model] = error.exit_code
                    idle.append(worker)
                    continue
                running[worker.optimize.remote(job)] = worker, model
                typer.echo(f"== {model}: begun", err=True)
            if not running:  # every worker has died
                failures |= dict.fromkeys(waiting, DIED)
                typer.echo(f"no machine is left for {len(waiting)} models", err=True)
                break
            (answer,), _ = ray.wait(list(running), num_returns=1)
            worker, model = running.pop(answer)
            try:
                finished: Finished = ray.get(answer)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[0]
                typer.echo(f"== {model}: its machine was lost ({reason})", err=True)
                if starts[model] < MAX_STARTS:
                    waiting.append(model)
                else:
                    failures[model] = DIED
                continue
            idle.append(worker)
            typer.echo(f"== {model}\n{finished.printed}", err=True)
            _keep(finished, outputs[model], database, summaries)
            if finished.status:
                failures[model] = finished.status
    done = len(outputs) - len(failures)
    failed = f"; failed: {', '.join(map(str, failures))}" if failures else ""
    typer.echo(f"{done} of {len(outputs)} models were optimized{failed}", err=True)
    return next(iter(failures.values()), 0)


@contextmanager
def _connect(address: str) -> Iterator[Any]:
    """Connect with the cluster, and leave it at the end.  Raises TensaurusError."""
    if find_spec("ray") is None:
        raise TensaurusError("ray is not installed", remedy="Run pip install 'tensaurus[ray]'.")
    import ray

    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=None)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        remedy = "Start one by `ray start --head`, or name its address."
        raise TensaurusError(f"no Ray cluster at {address}: {reason}", remedy=remedy) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_workers(ray: Any) -> list[Any]:
    """Start a worker on each machine of the kind of this one, or else of the most frequent kind."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from tensaurus.runtimes.measure.machine import Machine

    workers = list[Any]()
    for node in ray.nodes():
        if node["Alive"] and (processors := node["Resources"].get("CPU")):
            here = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            actor = ray.remote(num_cpus=processors, scheduling_strategy=here)(Worker)
            workers.append(actor.remote())
    if not workers:
        raise TensaurusError("no machine of the Ray cluster has processors to spare")
    try:
        kinds = ray.get([worker.hardware.remote() for worker in workers], timeout=START_SECONDS)
    except ray.exceptions.RayError as error:  # a time-out is one, too
        reason = f"not all machines of the Ray cluster answered within {START_SECONDS:g} s"
        remedy = "Wait until their processors are free: each machine is used as a whole."
        raise TensaurusError(reason, remedy=remedy) from error
    counts, own = Counter(kinds), Machine.here().hardware
    wanted = own if own in counts else max(counts, key=lambda kind: (counts[kind], kind))
    for kind, count in counts.items():
        machines = "1 machine" if count == 1 else f"{count} machines"
        typer.echo(f"{machines} of {kind}{'' if kind == wanted else ': of another kind, not used'}", err=True)
    return [worker for worker, kind in zip(workers, kinds, strict=True) if kind == wanted]


def _make_job(
    model: Path, output: Path, options: Sequence[str], option_files: Sequence[Path], database: Path | None
) -> Job:
    """Return the job of one model.  Raises TensaurusError where a file cannot be read."""
    from tensaurus.graph.onnx.kernel_libraries import library_path
    from tensaurus.graph.onnx.model_file import external_files
    from tensaurus.runtimes.measure.database import Database
    from tensaurus.runtimes.measure.measurement_file import write_measurements

    paths = {**external_files(model), **{path.name: path for path in option_files}, output.name: model}
    if (library := library_path(model)).exists():
        paths[library_path(output).name] = library
    files = dict[str, bytes]()
    with Database(database) as measurements, temporary_folder() as folder:
        write_measurements(folder / MEASUREMENTS, measurements.all())
        files[MEASUREMENTS] = (folder / MEASUREMENTS).read_bytes()
    for name, path in paths.items():
        try:
            files[name] = path.read_bytes()
        except OSError as error:
            raise TensaurusError(error.strerror or str(error), file=path) from error
    names = {str(path): path.name for path in option_files}
    return Job(output.name, tuple(names.get(word, word) for word in options), files)


def _keep(finished: Finished, output: Path, database: Path | None, summaries: Path | None) -> None:
    """Write a model's result beside its library, and add the measurements of its machine."""
    from tensaurus.runtimes.measure.database import Database
    from tensaurus.runtimes.measure.measurement_file import read_measurements

    for name, content in finished.files.items():
        target = output.parent / name
        if name == SUMMARY:
            if summaries is None:
                continue
            target = summaries / f"{output.stem}.json" if summaries.is_dir() else summaries
        with replace_file(target) as beside:
            beside.write_bytes(content)
    if not finished.measurements:
        return
    with temporary_folder() as folder, Database(database) as measurements:
        path = folder / MEASUREMENTS
        path.write_bytes(finished.measurements)
        measurements.add_missing(read_measurements(path))
