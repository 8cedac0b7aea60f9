"""Compiles kernels to objects, several at a time, each in a fork of a process that compiles no other kernel.

Halide numbers its names, so that an object's bytes depend on what its process compiled before; and the
measurement database takes a program with other bytes for another program. So one process loads everything,
compiles one fixed expression to warm up, and is forked for each object: all forks begin in the same state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple, TypeAlias

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.kernels.halide.compile import compile_object, input_tensors, kernel_name
from tensaurus.kernels.stages.sketch import Schedule, format_schedule, parse_schedule
from tensaurus.kernels.tune.object_files import ObjectFiles
from tensaurus.ops import TensorType
from tensaurus.system.child import Child, ChildError, die_with_parent
from tensaurus.system.scratch import open_unnamed_file

__all__ = ["ObjectCompiler", "ForkingCompiler", "KernelSource"]

TIMEOUT_SECONDS = 3.0  # after which compiling one object is given up, plus the caller's `patience`
START_TIMEOUT = 30.0  # additional seconds until a new process has imported Halide
LINKING_PATIENCE = 60.0  # additional seconds for an object of a kernel that was chosen
_ONE_FLOAT = TensorType("float32", (1,))
COMPILED, FAILED = b"\1", b"\0"  # the first byte of a fork's answer: the object follows, or the reason
_Task: TypeAlias = tuple[str, tuple[TensorType, ...], TensorType, str]  # scope, inputs, output, schedule


class KernelSource(NamedTuple):
    """What a kernel is compiled from: an expression over x0, x1, ... of these types, and its schedule."""

    scope: Scope
    types: tuple[TensorType, ...]
    output: TensorType
    schedule: Schedule

    def name(self, cpu: str) -> str:
        """Returns the name of the kernel for a processor."""
        return kernel_name(self.scope, self.types, self.output, self.schedule, cpu)


class ObjectCompiler:
    """Compiles objects for one processor in a child process, as many at a time as there are threads.

    An object is compiled once: it stays in memory, and in `files` for later runs.
    """

    def __init__(self, cpu: str, threads: int, files: ObjectFiles):
        self.cpu, self.threads, self.files = cpu, threads, files
        self._child: Child | None = None
        self._objects: dict[str, bytes] = {}  # by kernel name

    def begin_start(self) -> None:
        """Starts the child process and returns at once."""
        if self._child is None or not self._child.is_alive:
            self.close()
            self._child = Child(
                "the compiler of kernels", f"{__name__}:ForkingCompiler", self.cpu, timeout=TIMEOUT_SECONDS
            )

    def wait_for_start(self) -> None:
        """Waits until the child process is ready."""
        with suppress(ChildError):
            self.begin_start()
            assert self._child is not None
            self._child.ask("is_ready", patience=START_TIMEOUT)

    def compile(
        self, sources: Sequence[KernelSource], patience: float = LINKING_PATIENCE
    ) -> list[bytes | str]:
        """Returns the object of each kernel, or in one line why it cannot be compiled.

        `patience` is the additional time, in seconds, that one object may take.
        """
        names = [source.name(self.cpu) for source in sources]
        missing = {name: source for name, source in zip(names, sources, strict=True) if not self._find(name)}
        failures: dict[str, str] = {}
        for name, found in zip(missing, self._compile_now([*missing.values()], patience), strict=True):
            if isinstance(found, bytes):
                self._objects[name] = found
                self.files.store(name, found)
            else:
                failures[name] = found
        return [self._objects.get(name) or failures[name] for name in names]

    def has(self, source: KernelSource) -> bool:
        """Whether a kernel's object was compiled before."""
        return self._find(source.name(self.cpu))

    def _find(self, name: str) -> bool:
        if name not in self._objects and (found := self.files.read(name)) is not None:
            self._objects[name] = found
        return name in self._objects

    def _compile_now(self, sources: Sequence[KernelSource], patience: float) -> list[bytes | str]:
        if not sources:
            return []
        tasks = [
            (show_scope(source.scope), source.types, source.output, format_schedule(source.schedule))
            for source in sources
        ]
        rounds = -(-len(tasks) // self.threads)
        seconds = rounds * (TIMEOUT_SECONDS + patience) - TIMEOUT_SECONDS
        try:
            self.wait_for_start()
            assert self._child is not None
            return list(self._child.ask("compile", tasks, self.threads, patience=seconds))
        except ChildError as error:
            return [str(error)] * len(tasks)

    def close(self) -> None:
        """Ends the child process; it is started again when it is needed."""
        if self._child is not None:
            self._child.close()
        self._child = None


class ForkingCompiler:
    """Lives in the child process, which is forked for each object."""

    def __init__(self, cpu: str) -> None:
        self.cpu = cpu
        # the first compilation takes ten times as long as later ones, so it is done before any fork
        self._compile_in_fork("L[i:1](x0[i])", (_ONE_FLOAT,), _ONE_FLOAT, "flat(u=1*1, p=0)")

    def is_ready(self) -> bool:
        """Returns True, when this object is made and answers."""
        return True

    def compile(self, tasks: Sequence[_Task], at_once: int) -> list[bytes | str]:
        """Returns the object of each task, or the reason why there is none; `at_once` forks compile."""
        answers: list[bytes | str] = [""] * len(tasks)
        running: dict[int, tuple[int, IO[bytes]]] = {}  # by process id: place of the task, answer
        for place, task in enumerate(tasks):
            if len(running) == at_once:
                self._take_answer(running, answers)
            file = open_unnamed_file()
            running[self._fork(task, file)] = place, file
        while running:
            self._take_answer(running, answers)
        return answers

    def _fork(self, task: _Task, file: IO[bytes]) -> int:
        """Begins a fork of this process, which writes its answer to the file, and returns its id."""
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            answer = FAILED
            try:
                if die_with_parent(parent):
                    answer = COMPILED + self._compile_in_fork(*task)
            except BaseException as error:
                answer += (str(error) or type(error).__name__).encode()
            finally:
                file.write(answer)
                file.flush()
                os._exit(0)
        return pid

    def _take_answer(
        self, running: dict[int, tuple[int, IO[bytes]]], answers: list[bytes | str]
    ) -> None:
        """Waits until one of the forks has ended, and takes its answer."""
        pid, status = os.wait()
        place, file = running.pop(pid)
        with file:
            file.seek(0)
            answer = file.read()
        if answer[:1] == COMPILED:
            answers[place] = answer[1:]
        else:
            answers[place] = answer[1:].decode() or f"compiling ended by signal {status & 0x7F}"

    def _compile_in_fork(
        self, scope: str, types: tuple[TensorType, ...], output: TensorType, schedule: str
    ) -> bytes:
        """Returns the object, compiled in this process: a fork, or the child itself when it warms up."""
        parsed_scope = intern_scope(parse_scope(scope, {x.name: x for x in input_tensors(types)}))
        return compile_object(parsed_scope, types, output, parse_schedule(schedule), self.cpu)
