"""Kernels' objects, compiled beside what else is done, each in a process that has compiled nothing before.

Halide numbers what it names, so that an object would depend on what was compiled before it in its process;
and a program whose kernels are other bytes is another program to whatever was measured of it.  A process
that has got everything ready is forked for each object.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.normal.intern import interned
from tensaurus.kernels.halide.compile import code_of, tensors
from tensaurus.kernels.stages.sketch import Schedule, parse, show
from tensaurus.ops import TensorType
from tensaurus.system.child import Child, ChildError, tied

__all__ = ["Compiler", "Objects"]

LONG = 60.0  # seconds that one may take
ONE = TensorType("float32", (1,))
MADE, FAILED = 0, 1  # begin the answer of a fork
_Task: TypeAlias = tuple[str, tuple[TensorType, ...], TensorType, str]


class Compiler:
    """Compiles one object after the other for one processor."""

    def __init__(self, cpu: str):
        self.cpu = cpu
        self._child: Child | None = None
        self._pending: _Task | None = None
        self._last: tuple[_Task, bytes] | None = None

    def begin(
        self, scope: Scope, types: Sequence[TensorType], output: TensorType, schedule: Schedule
    ) -> None:
        """Compile this one, which is asked for next, perhaps."""
        self.wait()
        with suppress(ChildError):
            self._begin(_task(scope, types, output, schedule))

    def wait(self) -> None:
        """Until what was begun is there; what is wrong with it is said when it is asked for."""
        with suppress(ChildError):
            self._finish()

    def code(
        self, scope: Scope, types: Sequence[TensorType], output: TensorType, schedule: Schedule
    ) -> bytes:
        """The object.  Raises ChildError where it cannot be compiled, in one line."""
        task = _task(scope, types, output, schedule)
        if self._pending == task:
            self._finish()
        self.wait()
        if self._last is None or self._last[0] != task:
            self._begin(task)
            self._finish()
        assert self._last is not None
        return self._last[1]

    def _begin(self, task: _Task) -> None:
        if self._child is None or not self._child.alive:
            self.close()
            self._child = Child(
                "the compiler of kernels", f"{__name__}:Objects", self.cpu, timeout=LONG
            )
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
            self.close()  # an answer may still come
            raise

    def close(self) -> None:
        """End the process; it is started again when it is needed."""
        if self._child is not None:
            self._child.close()
        self._child, self._pending = None, None


def _task(scope: Scope, types: Sequence[TensorType], output: TensorType, schedule: Schedule) -> _Task:
    return show_scope(scope), tuple(types), output, show(schedule)


class Objects:
    """The process that is forked for each object."""

    def __init__(self, cpu: str) -> None:
        self.cpu = cpu
        # the first compilation takes ten times as long as the others
        self._code("L[i:1](x0[i])", (ONE,), ONE, "flat(u=1*1, p=0)")

    def code(self, scope: str, types: tuple[TensorType, ...], output: TensorType, schedule: str) -> bytes:
        """Raises ValueError where there is none, with the reason."""
        reading, writing = os.pipe()
        own = os.getpid()
        if (pid := os.fork()) == 0:
            answer = bytes([FAILED])
            try:
                if tied(own):
                    answer = bytes([MADE]) + self._code(scope, types, output, schedule)
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
        if answer[:1] != bytes([MADE]):
            raise ValueError(answer[1:].decode() or f"compiling ended by signal {status & 0x7F}")
        return answer[1:]

    def _code(self, scope: str, types: tuple[TensorType, ...], output: TensorType, schedule: str) -> bytes:
        whole = interned(parse_scope(scope, {x.name: x for x in tensors(types)}))
        return code_of(whole, types, output, parse(schedule), self.cpu)
