"""Objects of kernels: the same bytes whatever was compiled before, and one line for what has none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.kernels.halide.compile import compile_kernel, kernel_with_code
from tensaurus.kernels.stages.sketch import parse_schedule
from tensaurus.kernels.tune.compiled_objects import ForkingCompiler, ObjectCompiler
from tensaurus.ops import TensorType
from tensaurus.system.child import ChildError

CPU = "x86-64-v3"
TYPES = TensorType("float32", (32, 24)), TensorType("float32", (32, 32))
OUT = TYPES[0]
SCHEDULES = [parse_schedule(f"block(v=1*8x1, u=0:{rows}, k=0., p=0)") for rows in (2, 4)]


def scope_of(text: str) -> Scope:
    named = {f"x{k}": Tensor(f"x{k}", kind.shape, kind.dtype) for k, kind in enumerate(TYPES)}
    return intern_scope(parse_scope(text, named))


PRODUCT = scope_of("L[i:32, j:24](max(0, sum[r:32](mul(x1[i, r], x0[r, j]))))")


@pytest.fixture
def compiler() -> Iterator[ObjectCompiler]:
    made = ObjectCompiler(CPU)
    yield made
    made.close()


def test_an_object_does_not_depend_on_others(compiler: ObjectCompiler) -> None:
    first = compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[0])
    other = compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[1])
    assert first != other and compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[0]) == first
    compiler.close()  # another process makes the same
    assert compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[1]) == other
    made = kernel_with_code(PRODUCT, TYPES, OUT, SCHEDULES[0], first, CPU)
    here = compile_kernel(PRODUCT, TYPES, OUT, SCHEDULES[0], CPU)
    assert (made.name, made.inputs, made.output, made.cpu) == (here.name, here.inputs, here.output, here.cpu)
    assert made.name.encode() in first


def test_what_was_begun_is_there_when_it_is_asked_for(compiler: ObjectCompiler) -> None:
    wanted = [compiler.code(PRODUCT, TYPES, OUT, schedule) for schedule in SCHEDULES]
    compiler.begin(PRODUCT, TYPES, OUT, SCHEDULES[0])
    compiler.wait_for_pending()
    assert compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[0]) == wanted[0]
    compiler.begin(PRODUCT, TYPES, OUT, SCHEDULES[0])  # another one is asked for
    assert compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[1]) == wanted[1]
    compiler.begin(PRODUCT, TYPES, OUT, SCHEDULES[0])
    compiler.begin(PRODUCT, TYPES, OUT, SCHEDULES[1])
    assert compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[1]) == wanted[1]


def test_what_cannot_be_compiled_is_one_line(compiler: ObjectCompiler) -> None:
    wrong = parse_schedule("flat(u=1*16, p=0); flat(u=1*16, p=0)")
    compiler.begin(PRODUCT, TYPES, OUT, wrong)
    compiler.wait_for_pending()
    with pytest.raises(ChildError, match="sketches for") as error:
        compiler.code(PRODUCT, TYPES, OUT, wrong)
    assert "\n" not in str(error.value)
    assert compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[0])  # it goes on


def test_a_process_that_dies_while_it_compiles_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = ForkingCompiler(CPU)
    monkeypatch.setattr(ForkingCompiler, "_compile_in_fork", lambda *given: os.kill(os.getpid(), 9))
    with pytest.raises(ValueError, match="ended by signal 9"):
        objects.code("", (), OUT, "")


def test_a_process_that_died_is_replaced(compiler: ObjectCompiler) -> None:
    wanted = compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[0])
    child = compiler._child
    assert child is not None
    os.kill(child.pid, 9)
    child._process.wait()
    compiler.begin(PRODUCT, TYPES, OUT, SCHEDULES[0])
    assert compiler.code(PRODUCT, TYPES, OUT, SCHEDULES[0]) == wanted
