"""Compiles kernels to objects in the background, each in a fork of a process that compiles no other kernel.

Halide numbers its names, so that an object's bytes depend on what its process compiled before; and the
measurement database takes a program with other bytes for another program. So one process loads everything,
compiles one fixed expression to warm up, and is forked for each object: all forks begin in the same state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.kernels.halide.compile import compile_object, input_tensors
from tensaurus.kernels.stages.sketch import Schedule, format_schedule, parse_schedule
from tensaurus.ops import TensorType
from tensaurus.system.child import Child, ChildError, die_with_parent

__all__ = ["ObjectCompiler", "ForkingCompiler"]

TIMEOUT_SECONDS = 60.0  # after which compiling one object is given up
_ONE_FLOAT = TensorType("float32", (1,))
COMPILED, FAILED = 0, 1  # the first byte of a fork's answer: the object follows, or the reason
_Task: TypeAlias = tuple[str, tuple[TensorType, ...], TensorType, str]  # scope, inputs, output, schedule


class ObjectCompiler:
    """Compiles objects for one processor, one after the other, in a child process.

    `_pending` is the object that the child compiles now, `_last` the last one that it has compiled.
    """

    def __init__(self, cpu: str):
        self.cpu = cpu
        self._child: Child | None = None
        self._pending: _Task | None = None
        self._last: tuple[_Task, bytes] | None = None

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
            self._child.ask("is_ready")

    def begin(
        self, scope: Scope, types: Sequence[TensorType], output: TensorType, schedule: Schedule
    ) -> None:
        """Starts to compile an object that may be asked for next, and returns at once."""
        self.wait_for_pending()
        with suppress(ChildError):
            self._begin(_make_task(scope, types, output, schedule))

    def wait_for_pending(self) -> None:
        """Waits for the object that was begun; an error is left to `code`, which compiles it again."""
        with suppress(ChildError):
            self._finish()

    def code(
        self, scope: Scope, types: Sequence[TensorType], output: TensorType, schedule: Schedule
    ) -> bytes:
        """Returns the object. Raises ChildError, with the reason in one line, where it cannot be compiled."""
        task = _make_task(scope, types, output, schedule)
        if self._pending == task:
            self._finish()
        self.wait_for_pending()
        if self._last is None or self._last[0] != task:
            self._begin(task)
            self._finish()
        assert self._last is not None
        return self._last[1]

    def _begin(self, task: _Task) -> None:
        self.begin_start()
        assert self._child is not None
        self._child.begin("code", *task)
        self._pending = task

    def _finish(self) -> None:
        task, self._pending = self._pending, None
        if task is None or self._child is None:
            return
        try:
            self._last = task, self._child.finish()
        except ChildError:
            raise
        except BaseException:
            self.close()  # else a late answer would be taken for the answer to the next task
            raise

    def close(self) -> None:
        """Ends the child process; it is started again when it is needed."""
        if self._child is not None:
            self._child.close()
        self._child, self._pending = None, None


def _make_task(scope: Scope, types: Sequence[TensorType], output: TensorType, schedule: Schedule) -> _Task:
    return show_scope(scope), tuple(types), output, format_schedule(schedule)


class ForkingCompiler:
    """Lives in the child process, which is forked for each object."""

    def __init__(self, cpu: str) -> None:
        self.cpu = cpu
        # the first compilation takes ten times as long as later ones, so it is done before any fork
        self._compile_in_fork("L[i:1](x0[i])", (_ONE_FLOAT,), _ONE_FLOAT, "flat(u=1*1, p=0)")

    def is_ready(self) -> bool:
        """Returns True, when this object is made and answers."""
        return True

    def code(self, scope: str, types: tuple[TensorType, ...], output: TensorType, schedule: str) -> bytes:
        """Returns the object, compiled in a fork of this process. Raises ValueError with the reason."""
        reading, writing = os.pipe()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            answer = bytes([FAILED])
            try:
                if die_with_parent(parent):
                    answer = bytes([COMPILED]) + self._compile_in_fork(scope, types, output, schedule)
            except BaseException as error:
                answer += (str(error) or type(error).__name__).encode()
            finally:
                with open(writing, "wb", closefd=False) as pipe:
                    pipe.write(answer)
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        if answer[:1] != bytes([COMPILED]):
            raise ValueError(answer[1:].decode() or f"compiling ended by signal {status & 0x7F}")
        return answer[1:]

    def _compile_in_fork(
        self, scope: str, types: tuple[TensorType, ...], output: TensorType, schedule: str
    ) -> bytes:
        """Returns the object, compiled in this process: a fork, or the child itself when it warms up."""
        parsed_scope = intern_scope(parse_scope(scope, {x.name: x for x in input_tensors(types)}))
        return compile_object(parsed_scope, types, output, parse_schedule(schedule), self.cpu)
