"""Optimizes several models, one after the other, each in a process of its own.

    tensaurus optimize models/*.onnx -o out/     runs     tensaurus optimize models/a.onnx -o out/a.onnx, ...

All processes use one database: a kernel that was tuned for one model costs the next one a compilation.  A
process that dies loses its own model only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from tensaurus.system.errors import TensaurusError

__all__ = ["format_options", "optimize_each", "plan_outputs"]

INTERRUPTED = 130  # exit status
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # that a model's process gets instead of this one
OWN_OPTIONS = ("output", "json", "ray")  # that differ from model to model, or are for all of them
# The process of a model ends with this one, even where this one is killed.
RUN_MODEL = (
    "import os; from tensaurus.system.child import die_with_parent; die_with_parent({pid});"
    "from tensaurus.__main__ import main; main()"
)


def plan_outputs(models: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return the file of each model's result in the folder.

    Raises TensaurusError where the folder is a file, or two files would be the same.
    """
    if folder.exists() and not folder.is_dir():
        remedy = "Give a folder for the results of several models."
        raise TensaurusError("it is a file, not a folder", file=folder, remedy=remedy)
    outputs = {model: folder / f"{model.stem}.onnx" for model in dict.fromkeys(models)}
    seen: dict[str, Path] = {os.path.realpath(model): model for model in outputs}
    for model, output in outputs.items():
        other = seen.setdefault(os.path.realpath(output), model)
        if other is not model or os.path.realpath(output) == os.path.realpath(model):
            reason = f"the results or files of {other} and {model} would be one file"
            raise TensaurusError(reason, file=output, remedy="Name another folder, or fewer models.")
    return outputs


def optimize_each(
    context: typer.Context, outputs: Mapping[Path, Path], folder: Path, json_folder: Path | None
) -> int:
    """Optimize each model with the options of the command line; return the first failure's exit status, or 0.

    After an interrupt the model at hand is finished as by itself, and no other is begun.
    """
    for needed in (folder, json_folder):
        if needed is not None:
            needed.mkdir(parents=True, exist_ok=True)
    options, failures = format_options(context), dict[str, int]()
    for model, output in outputs.items():
        typer.echo(f"\n== {model}", err=True)
        command = [sys.executable, "-c", RUN_MODEL.format(pid=os.getpid()), "optimize", str(model)]
        command += ["--output", str(output), *options]
        if json_folder is not None:
            command += ["--json", str(json_folder / f"{model.stem}.json")]
        status, was_interrupted = _run(command)
        if status:
            failures[str(model)] = status
        if was_interrupted:
            return INTERRUPTED
    done = len(outputs) - len(failures)
    failed = f"; failed: {', '.join(failures)}" if failures else ""
    typer.echo(f"\n{done} of {len(outputs)} models are in {folder}{failed}", err=True)
    return next(iter(failures.values()), 0)


def _run(command: Sequence[str]) -> tuple[int, bool]:
    """Run a command that gets this process's signals; return its exit status, and whether a signal came."""
    received = list[int]()
    # a process group of its own, so that a Ctrl-C of the terminal comes once: from this process
    with subprocess.Popen(command, process_group=0) as process:

        def pass_on(number: int, frame: FrameType | None) -> None:
            received.append(number)
            process.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in SIGNALS}
        try:
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return (128 - status if status < 0 else status), bool(received)


def format_options(context: typer.Context, excluded: Collection[str] = ()) -> list[str]:
    """Return the options of a command as they were given, without those of `OWN_OPTIONS` and defaults."""
    words = list[str]()
    for parameter in context.command.params:
        value: Any = context.params.get(parameter.name or "")
        if parameter.param_type_name != "option" or parameter.name in (*OWN_OPTIONS, *excluded):
            continue
        if value is None or value == parameter.get_default(context):
            continue
        name = max(parameter.opts, key=len)
        if getattr(parameter, "is_flag", False):
            words.append(name)
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [name, str(each)]
    return words
