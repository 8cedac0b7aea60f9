"""Objects of kernels: the same bytes whatever was compiled before, and one line for what has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path

import numpy as np
import pytest

from tensaurus.expr.ir.expression_text import parse as parse_scope
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.kernels.halide.compile import (
    compile_kernel,
    compile_object,
    jit,
    kernel_name,
    uncompiled_kernel,
)
from tensaurus.kernels.library.loaded_object import ObjectLoader
from tensaurus.kernels.stages.sketch import parse_schedule
from tensaurus.kernels.tune import object_files
from tensaurus.kernels.tune.compiled_objects import ForkingCompiler, KernelSource, ObjectCompiler
from tensaurus.kernels.tune.object_files import ObjectFiles
from tensaurus.kernels.tune.timing_processes import TimingProcesses
from tensaurus.ops import TensorType
from tensaurus.system import source_hash
from tensaurus.system.errors import TensaurusError

CPU = "x86-64-v3"
TYPES = TensorType("float32", (32, 24)), TensorType("float32", (32, 32))
OUT = TYPES[0]
SCHEDULES = [parse_schedule(f"block(v=1*8x1, u=0:{rows}, k=0., p=0)") for rows in (2, 4)]


def scope_of(text: str) -> Scope:
    named = {f"x{k}": Tensor(f"x{k}", kind.shape, kind.dtype) for k, kind in enumerate(TYPES)}
    return intern_scope(parse_scope(text, named))


PRODUCT = scope_of("L[i:32, j:24](max(0, sum[r:32](mul(x1[i, r], x0[r, j]))))")
SOURCES = [KernelSource(PRODUCT, TYPES, OUT, schedule) for schedule in SCHEDULES]


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[ObjectCompiler]:
    made = ObjectCompiler(CPU, 2, ObjectFiles(tmp_path / "objects"))
    yield made
    made.close()


def test_an_object_does_not_depend_on_others(compiler: ObjectCompiler, tmp_path: Path) -> None:
    first, other = compiler.compile(SOURCES)
    assert isinstance(first, bytes) and first != other
    # another process makes the same, also in another order and where two of three are compiled at once
    third = SOURCES[0]._replace(schedule=parse_schedule("block(v=1*8x1, u=0:1, k=0., p=0)"))
    again = ObjectCompiler(CPU, 2, ObjectFiles(tmp_path / "other objects"))
    assert again.compile([third, *SOURCES[::-1]])[1:] == [other, first]
    again.close()
    assert compiler.compile([]) == []
    made = uncompiled_kernel(PRODUCT, TYPES, OUT, SCHEDULES[0], CPU)
    here = compile_kernel(PRODUCT, TYPES, OUT, SCHEDULES[0], CPU)
    assert (made.name, made.inputs, made.output, made.cpu) == (here.name, here.inputs, here.output, here.cpu)
    assert made.code is None and here.code and made.name.encode() in first


def test_an_object_is_compiled_once(compiler: ObjectCompiler, tmp_path: Path) -> None:
    assert not compiler.has(SOURCES[0])
    objects = compiler.compile([*SOURCES, SOURCES[0]])
    assert objects[0] == objects[2] and compiler.has(SOURCES[0])
    compiler.close()
    assert compiler.compile(SOURCES) == objects[:2] and compiler._child is None
    later = ObjectCompiler(CPU, 2, ObjectFiles(tmp_path / "objects"))
    assert later.has(SOURCES[1]) and later.compile(SOURCES) == objects[:2] and later._child is None


def test_what_cannot_be_compiled_is_one_line(compiler: ObjectCompiler) -> None:
    wrong = parse_schedule("flat(u=1*16, p=0); flat(u=1*16, p=0)")
    error, right = compiler.compile([SOURCES[0]._replace(schedule=wrong), SOURCES[0]])
    assert isinstance(error, str) and "sketches for" in error and "\n" not in error
    assert isinstance(right, bytes)  # it goes on


def test_a_fork_that_dies_while_it_compiles_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = ForkingCompiler(CPU)
    monkeypatch.setattr(ForkingCompiler, "_compile_in_fork", lambda *given: os.kill(os.getpid(), 9))
    assert objects.compile([("", (), OUT, "")] * 3, 2) == ["compiling ended by signal 9"] * 3


def test_a_process_that_died_is_replaced(compiler: ObjectCompiler) -> None:
    assert all(isinstance(found, bytes) for found in compiler.compile(SOURCES[:1]))
    child = compiler._child
    assert child is not None
    os.kill(child.pid, 9)
    child._process.wait()
    assert all(isinstance(found, bytes) for found in compiler.compile(SOURCES[1:]))


@pytest.mark.parametrize("pack", ["", "pack(x0=1/8); "])
def test_a_loaded_object_computes_what_the_compiled_function_does(pack: str) -> None:
    schedule = parse_schedule(f"{pack}block(v=1*8x1, u=0:4, k=0., p=1)")
    code = compile_object(PRODUCT, TYPES, OUT, schedule, CPU)
    loaded = ObjectLoader(CPU).load(code, PRODUCT, TYPES, OUT, schedule)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in TYPES]
    found, wanted = (np.full(OUT.shape, np.nan, np.float32) for _ in range(2))
    loaded(arrays, found)()
    jit(PRODUCT, TYPES, schedule, CPU)(arrays, wanted)()
    assert np.array_equal(found, wanted)
    assert np.allclose(found, np.maximum(arrays[1] @ arrays[0], 0), atol=1e-4)
    with pytest.raises(TensaurusError):
        ObjectLoader(CPU).load(code[: len(code) // 2], PRODUCT, TYPES, OUT, schedule)


def test_what_is_timed_and_checked_is_the_object() -> None:
    """An object of another expression takes its time, and is found to compute other numbers."""
    timer, schedule = TimingProcesses(CPU, 1), "block(v=1*8x1, u=0:2, k=0., p=0)"
    twice = scope_of("L[i:32, j:24](max(0, sum[r:32](mul(2, mul(x1[i, r], x0[r, j])))))")
    timer.set_expression(show(PRODUCT), TYPES, OUT)
    try:
        code = compile_object(PRODUCT, TYPES, OUT, SCHEDULES[0], CPU)
        assert timer.time_on_all_threads(schedule, 0.01, 10, code) < inf
        assert timer.find_error(schedule) == ""
        assert timer.time_on_all_threads(schedule, 0.01, 10, b"no object") == inf
        other = compile_object(twice, TYPES, OUT, SCHEDULES[0], CPU)
        names = [kernel_name(scope, TYPES, OUT, SCHEDULES[0], CPU).encode() for scope in (twice, PRODUCT)]
        assert timer.time_on_all_threads(schedule, 0.01, 10, other.replace(*names)) < inf
        assert "error" in timer.find_error(schedule)
    finally:
        timer.close()


def test_objects_are_kept_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ObjectFiles(tmp_path / "objects")
    assert files.read("a") is None
    files.store("a", b"code of a")
    assert files.read("a") == ObjectFiles(tmp_path / "objects").read("a") == b"code of a"
    (path,) = (tmp_path / "objects").glob("*/a.o")
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:-1], whole[:-1] + b"?", whole + b"?"):
        path.write_bytes(damaged)
        assert files.read("a") is None
    monkeypatch.setattr(object_files, "source_hash", lambda *given: "another version of the code")
    assert files.read("a") is None
    files.store("b", b"code of b")
    assert files.read("b") == b"code of b" and not path.exists()


def test_the_objects_used_longest_ago_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_files, "MAX_BYTES", 3 * (object_files.DIGEST_BYTES + 100))
    files = ObjectFiles(tmp_path)
    for name in "abc":
        files.store(name, name.encode() * 100)
        (path,) = tmp_path.glob(f"*/{name}.o")
        os.utime(path, (ord(name), ord(name)))
    assert files.read("a")  # b is now the one that was used longest ago
    files.store("d", b"d" * 100)
    assert [name for name in "abcd" if files.read(name)] == ["a", "c", "d"]


def test_objects_are_compiled_again_where_no_file_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    files = ObjectFiles(tmp_path / "file")
    files.store("a", b"code")
    assert files.read("a") is None and (tmp_path / "file").read_text() == "no folder"


def test_files_are_of_one_version_of_the_code() -> None:
    assert len(source_hash.source_hash("halide")) == 64
    assert source_hash.source_hash("halide") != source_hash.source_hash("numpy")
