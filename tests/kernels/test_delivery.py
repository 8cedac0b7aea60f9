"""Kernels as custom operators of a stock onnxruntime: linked, exported, saved; and what goes wrong."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from threading import Barrier
from time import perf_counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_kernels import (
    ADDED,
    AFFINE,
    CASES,
    DEEP,
    DOUBLED,
    GREEDY,
    NESTED,
    NONE,
    TWIN,
    Case,
    known,
    program_of,
    value_info,
)
from typer.testing import CliRunner

import tensaurus as ts
from tensaurus.app.benchmark import Benchmark
from tensaurus.app.cli.app import app
from tensaurus.app.report.bench_records import Setting
from tensaurus.app.zoo.selection import select_models
from tensaurus.check.files.equality import Equality
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.ir.program_text import format_program
from tensaurus.graph.onnx.build import Build
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.graph.onnx.kernel_libraries import (
    METADATA_KEY,
    find_libraries,
    library_path,
    require_library_path,
    save_with_libraries,
)
from tensaurus.graph.onnx.onnx_export import export_model
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.kernels.halide import cpu_features
from tensaurus.kernels.halide.cpu_features import CpuidBit, required_features
from tensaurus.kernels.library import shared_library
from tensaurus.kernels.library.shared_library import find_compiler, link_library, linked_library
from tensaurus.ops import TensorType, registry
from tensaurus.ops.kernel_nodes import KERNEL_DOMAIN
from tensaurus.optimizer.optimize import Result
from tensaurus.optimizer.result.summary import Summary
from tensaurus.runtimes import backends
from tensaurus.runtimes.backends import BackendError
from tensaurus.runtimes.backends.reference import evaluate_all
from tensaurus.system.errors import TensaurusError

README = Path(__file__).parents[2] / "README.md"

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
pytestmark = needs_cc


def build_of(folder: Path, *cases: Case) -> Build:
    """One model with an output y0, y1, ... for each case; inputs of equal types are shared."""
    return BuildCache(folder, kernels=known(*cases), link=linked_library)(
        program_of(*(case.node() for case in cases))
    )


def session_of(build: Build, threads: int = 2) -> ort.InferenceSession:
    """Without our backend: onnxruntime as anybody uses it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # nothing of its own on stderr
    for path in build.libraries:
        options.register_custom_ops_library(str(path))
    assert isinstance(build.model, bytes)
    return ort.InferenceSession(build.model, options, providers=["CPUExecutionProvider"])


def written(case: Case) -> bytes:
    return export_model(program_of(case.node()), kernels=known(case)).SerializeToString()


def expected(case: Case, feeds: dict[str, np.ndarray]) -> np.ndarray:
    lifted = {name: np.asarray(Reals().lift(value)) for name, value in feeds.items()}
    (found,) = evaluate_all([program_of(case.node())], lifted, Reals())
    return found["y0"]


def assert_computes(case: Case, found: np.ndarray, feeds: dict[str, np.ndarray]) -> None:
    kind = case.node().tensor
    assert found.shape == kind.shape and found.dtype == np.dtype(kind.dtype)
    tolerance = {"float32": 1e-6, "float64": 1e-14}.get(kind.dtype, 0)
    wanted = np.asarray(expected(case, feeds)).astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


def model_calling(kernel: Kernel, inputs: list[onnx.ValueInfoProto], output: int = 1) -> bytes:
    """A model with the kernel, and a copy of its output whose shape nobody states."""
    nodes = [
        onnx.helper.make_node(kernel.name, [value.name for value in inputs], ["z"], domain=KERNEL_DOMAIN),
        onnx.helper.make_node("Identity", ["z"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", inputs, [onnx.helper.make_tensor_value_info("y", output, None)]
    )
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(KERNEL_DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()


# What a kernel computes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_computes_its_expression(case: Case, tmp_path: Path) -> None:
    build = build_of(tmp_path, case)
    assert [node.domain for node in build.proto().graph.node] == [KERNEL_DOMAIN]
    assert len(build.libraries) == 1
    sessions = [session_of(build, threads) for threads in (1, 2)]
    for seed in range(3):
        feeds = case.feeds(seed)
        one, two = (session.run(None, feeds)[0] for session in sessions)
        assert_computes(case, one, feeds)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("case", [AFFINE, TWIN, ADDED], ids=str)
def test_no_alignment_is_assumed(case: Case, tmp_path: Path) -> None:
    session, feeds = session_of(build_of(tmp_path, case)), case.feeds()
    for offset in range(1, 65, 7):
        moved = {}
        for name, value in feeds.items():
            raw = np.zeros(value.nbytes + 128, np.uint8)
            start = -raw.ctypes.data % 64 + offset * value.itemsize
            place = raw[start % 128 : start % 128 + value.nbytes].view(value.dtype).reshape(value.shape)
            place[...] = value
            assert place.ctypes.data % 64 == offset * value.itemsize % 64
            moved[name] = place
        assert_computes(case, session.run(None, moved)[0], feeds)


def test_all_kernels_of_a_model_are_in_one_library(tmp_path: Path) -> None:
    cases = [AFFINE, TWIN, DOUBLED]
    chained = AFFINE.node()
    twice = AFFINE.node([chained, chained.args[1]])
    builds = BuildCache(tmp_path, kernels=known(*cases), link=linked_library)
    build = builds(program_of(twice))
    feeds = AFFINE.feeds()
    once = expected(AFFINE, feeds).astype(np.float32)
    found = session_of(build).run(None, feeds)[0]
    assert_computes(AFFINE, found, {**feeds, "v0": once})
    assert builds(program_of(chained)).libraries == build.libraries
    others = BuildCache(tmp_path, kernels=known(*cases), link=linked_library)
    assert others(program_of(twice)).libraries == build.libraries
    assert build.libraries[0].exists() and list(tmp_path.iterdir()) == []  # it outlives the builder's folder


@pytest.mark.nightly
def test_two_libraries_and_many_threads_at_once(tmp_path: Path) -> None:
    work = []
    for place, case in enumerate([AFFINE, NESTED, AFFINE, TWIN]):
        folder = tmp_path / str(place)
        folder.mkdir()
        build = build_of(folder, case)
        work += [(case, session_of(build), seed) for seed in range(3)]
    assert len({session for _, session, _ in work}) == 12

    def run(entry: tuple[Case, ort.InferenceSession, int]) -> None:
        case, session, seed = entry
        feeds = case.feeds(seed)
        for _ in range(40):
            assert_computes(case, session.run(None, feeds)[0], feeds)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(run, work))


def test_the_runtime_knows_the_shape_of_what_a_kernel_makes(tmp_path: Path) -> None:
    for case in (AFFINE, DOUBLED, NONE):
        kernel, kind = case.kernel(), case.node().tensor
        path = link_library([kernel], tmp_path / f"{case}.so")
        inputs = [value_info(f"v{k}", each) for k, each in enumerate(case.types)]
        session = session_of(Build(model_calling(kernel, inputs), (path,)))
        assert session.get_outputs()[0].shape == list(kind.shape)


# What goes wrong


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    kernel = AFFINE.kernel()
    path = link_library([kernel], tmp_path / "a.so")
    inputs = [onnx.helper.make_tensor_value_info(f"v{k}", 1, None) for k in range(2)]
    session, feeds = session_of(Build(model_calling(kernel, inputs), (path,))), AFFINE.feeds()
    for wrong, said in (
        (np.zeros((13, 39), np.float32), "[13, 39]"),
        (np.zeros((40, 13), np.float32), "[40, 13]"),
        (np.zeros((0, 40), np.float32), "[0, 40]"),
        (np.zeros((), np.float32), "[]"),
        (feeds["v1"], "[40]"),
        (np.zeros((1, 13, 40), np.float32), "[1, 13, 40]"),
    ):
        words = f"eop_affine: its input 0 has the shape {said}, the kernel was compiled for [13, 40]"
        pattern = re.escape(words)
        with pytest.raises(Exception, match=pattern):
            session.run(None, {**feeds, "v0": wrong})
    assert_computes(AFFINE, session.run(None, feeds)[0], feeds)


def test_other_element_types_are_refused(tmp_path: Path) -> None:
    kernel = AFFINE.kernel()
    path = link_library([kernel], tmp_path / "a.so")
    inputs = [onnx.helper.make_tensor_value_info(f"v{k}", 11, None) for k in range(2)]
    with pytest.raises(Exception, match="eop_affine"):
        session_of(Build(model_calling(kernel, inputs, 11), (path,)))


def test_scratch_beyond_a_kernels_reach_is_a_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """More than 2 GiB, in a parallel loop; what runs then is not the worse for it."""
    path = link_library([GREEDY.kernel(), AFFINE.kernel()], tmp_path / "a.so")
    for threads in (1, 2):
        failing, working = (session_of(Build(written(case), (path,)), threads) for case in (GREEDY, AFFINE))
        for seed in range(3):
            with pytest.raises(Exception, match=r"eop_greedy: no memory for scratch of 4096000000 bytes$"):
                failing.run(None, GREEDY.feeds(seed))
            feeds = AFFINE.feeds(seed)
            assert_computes(AFFINE, working.run(None, feeds)[0], feeds)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_that_is_out_is_a_status(threads: int, tmp_path: Path) -> None:
    """In tasks of tasks; what they held is kept for the next run, which does not need more of the system."""
    path = link_library([DEEP.kernel()], tmp_path / "a.so")
    (tmp_path / "m.onnx").write_bytes(written(DEEP))
    np.savez(tmp_path / "feeds.npz", **DEEP.feeds())
    script = f"""
import resource
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = {threads}
options.log_severity_level = 4
options.register_custom_ops_library({str(path)!r})
session = ort.InferenceSession("m.onnx", options, providers=["CPUExecutionProvider"])
feeds = dict(np.load("feeds.npz"))

def used():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

before = used()
for room in (4, 20, 36):
    resource.setrlimit(resource.RLIMIT_AS, (before + room * 2**20, resource.RLIM_INFINITY))
    for _ in range(20):
        try:
            session.run(None, feeds)
        except Exception as error:
            assert "eop_deep: no memory for scratch of 16777216 bytes" in str(error), error
        else:
            raise SystemExit(f"it ran in {{room}} MiB")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for _ in range(20):
    np.save("found.npy", session.run(None, feeds)[0])
assert used() - before < {2 + 2 * threads} * 2**24, (before, used())
"""
    # an arena for each thread has room of its own
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_computes(DEEP, np.load(tmp_path / "found.npy"), DEEP.feeds())


def test_a_lacking_processor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cpu_features.FEATURES, "imaginary", CpuidBit(7, 0, 3, 0))  # reserved, always 0
    monkeypatch.setitem(
        cpu_features.FEATURES, "far", CpuidBit(0x7FFFFFFF, 0, 0, 0)
    )  # a leaf that there is not
    monkeypatch.setitem(
        cpu_features.FEATURES, "unsaved", CpuidBit(1, 0, 2, 28, 1 << 31)
    )  # state that nobody saves
    kernels = [replace(DOUBLED.kernel(), cpu="imaginary, far unsaved"), AFFINE.kernel()]
    path = link_library(kernels, tmp_path / "a.so")
    words = r"this processor lacks imaginary, far, unsaved, for which they were compiled"
    with pytest.raises(BackendError, match=words) as caught:
        backends.find("onnxruntime").compile(Build(build_of(tmp_path, AFFINE).model, (path,)), threads=1)
    assert "\n" not in str(caught.value)


def test_words_for_processors() -> None:
    assert required_features("") == () and required_features("fma") == ("fma",)
    for lower, higher in (("x86-64-v2", "x86-64-v3"), ("x86-64-v3", "x86-64-v4"), ("avx2", "avx512_skylake")):
        assert set(required_features(lower)) < set(required_features(higher))
    others = [name for name in required_features("avx2") if name not in ("sse41", "avx")]
    assert required_features("sse41,avx avx2") == ("sse41", "avx", *others)
    with pytest.raises(TensaurusError, match="unknown processor feature 'neon'"):
        required_features("neon")


# What Linux calls otherwise, or writes with an underscore.
LINUX = {"sse3": "pni", "sse41": "sse4_1", "sse42": "sse4_2", "lzcnt": "abm", "avxvnni": "avx_vnni"}
LINUX |= {f"avx512{name}": f"avx512_{name}" for name in ("vbmi2", "vnni", "bitalg", "vpopcntdq", "bf16")}
LINUX |= {"avx512vp2intersect": "avx512_vp2intersect"}
LINUX |= {f"amx{name}": f"amx_{name}" for name in ("tile", "int8", "bf16")}


def test_the_processors_features_are_those_that_linux_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (flags, *_) = re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    absent = [name for name in cpu_features.FEATURES if LINUX.get(name, name) not in flags.split()]
    monkeypatch.setitem(cpu_features.FEATURES, "imaginary", CpuidBit(7, 0, 3, 0))
    kernel = replace(DOUBLED.kernel(), cpu=" ".join(cpu_features.FEATURES))
    with pytest.raises(Exception, match="lacks") as caught:
        ort.SessionOptions().register_custom_ops_library(str(link_library([kernel], tmp_path / "a.so")))
    said = str(caught.value).partition("lacks ")[2].partition(", for which")[0]
    assert said.split(", ") == [*absent, "imaginary"]


GetApi = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GetVersion = ctypes.CFUNCTYPE(ctypes.c_void_p)
CreateStatus = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


@pytest.mark.parametrize("oldest", [1, None])
def test_an_old_runtime_is_told_so(tmp_path: Path, oldest: int | None) -> None:
    """One that knows the first version of the interface alone; one that knows none can be told nothing."""
    said: list[bytes] = []

    def create(code: int, words: bytes) -> int:
        said.append(words)
        return 77

    created = CreateStatus(create)
    table = (ctypes.c_void_p * 300)(ctypes.cast(created, ctypes.c_void_p))
    get = GetApi(lambda version: ctypes.addressof(table) if version == oldest else None)
    number = ctypes.create_string_buffer(b"1.19.2")
    version = GetVersion(lambda: ctypes.addressof(number))
    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p))
    loaded = ctypes.CDLL(str(link_library([DOUBLED.kernel()], tmp_path / "a.so")))
    loaded.RegisterCustomOps.restype = ctypes.c_void_p
    assert loaded.RegisterCustomOps(None, base) == (77 if oldest else None)
    assert said == ([b"these kernels need onnxruntime 1.20 or newer, this is 1.19.2"] if oldest else [])


# The library


def test_equal_kernels_make_equal_bytes(tmp_path: Path) -> None:
    kernels = [case.kernel() for case in CASES]
    one, two = (
        link_library(kernels, tmp_path / "a.so"),
        link_library(kernels[::-1] + kernels[:2], tmp_path / "b.so"),
    )
    assert one.read_bytes() == two.read_bytes()
    assert str(tmp_path).encode() not in one.read_bytes()
    start = perf_counter()
    link_library(kernels[:1], tmp_path / "c.so")
    assert perf_counter() - start < 5  # about 0.2 s of an idle machine


def test_nothing_else_is_exported(tmp_path: Path) -> None:
    loaded = ctypes.CDLL(str(link_library([case.kernel() for case in CASES], tmp_path / "a.so")))
    assert loaded.RegisterCustomOps
    for name in ("halide_malloc", "halide_do_par_for", "halide_error", AFFINE.kernel().name, "compute"):
        assert not hasattr(loaded, name)


def test_scratch_is_kept_and_bounded(tmp_path: Path) -> None:
    """The pool alone: aligned, apart from each other, nothing from the system once it has what it takes."""
    (tmp_path / "kernels.inc").write_text("\n".join(shared_library._kernel_tables([])))
    shutil.copy(shared_library.SHIM, tmp_path)
    (tmp_path / "pool.c").write_text(
        """
        #include <stdlib.h>
        static int fresh, freed;
        static int counted(void **p, size_t a, size_t n) { fresh++; return posix_memalign(p, a, n); }
        static void gone(void *p) { freed++; free(p); }
        #define posix_memalign counted
        #define free gone
        #include "shim.c"
        #undef free
        #define API __attribute__((visibility("default")))
        API int rounds(int count, size_t first, size_t second)
        {
            Strand own = {0};
            for (int n = 0; n < count; n++) {
                char *a = halide_malloc(&own, first), *b = halide_malloc(&own, second);
                if (!a || !b || (size_t)a % 128 || (size_t)b % 128)
                    return -1;
                if (a < b ? a + first > b : b + second > a)
                    return -2;
                memset(a, 1, first);
                memset(b, 2, second);
                halide_free(&own, n % 2 ? a : b);
                halide_free(&own, n % 2 ? b : a);
            }
            return own.held ? -3 : fresh;
        }
        API Block *take(size_t bytes) { return take_block(bytes); }
        API void give(Block *block) { return_block(block); }
        API int freed_so_far(void) { return freed; }
        API size_t kept_bytes(void) { return bytes_kept; }
        """
    )
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-Wno-unused-function", "-o", "pool.so", "pool.c"], cwd=tmp_path, check=True)
    pool = ctypes.CDLL(str(tmp_path / "pool.so"))
    pool.take.restype, pool.take.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    pool.give.argtypes = [ctypes.c_void_p]
    pool.kept_bytes.restype = ctypes.c_size_t
    pool.rounds.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
    assert pool.rounds(1000, 5000, 5001) == 2
    assert pool.rounds(1000, 1, 4096) == 4
    assert pool.rounds(1000, 100_000, 3 << 20) == 6
    for bytes_ in (0, 1, 2**31, 2**31 + 1, 2**62, 2**64 - 1, 2**64 - 200):
        block = pool.take(bytes_)
        assert (block is None) == (bytes_ > 2**31)
        if block:
            pool.give(block)
    barrier = Barrier(2, timeout=60)

    def again(place: int) -> bool:
        """Whether a thread gets the block that it gave back, whoever gave one back last."""
        first = pool.take(10_000)
        barrier.wait()
        for turn in range(2):
            if turn == place:
                pool.give(first)
            barrier.wait()
        second = pool.take(10_000) if place == 0 else None
        barrier.wait()
        second = second or pool.take(10_000)
        pool.give(second)
        return bool(second == first)

    with ThreadPoolExecutor(2) as both:
        assert all(both.map(again, (0, 1)))

    def leave(count: int, bytes_: int) -> set[int]:
        """What another thread has given back."""
        found = {pool.take(bytes_) for _ in range(count)}
        for block in found:
            pool.give(block)
        return found

    with ThreadPoolExecutor(1) as one:
        little, much = (one.submit(leave, 3, bytes_).result() for bytes_ in (50_000, 100 << 20))
    assert pool.take(100 << 20) in much  # where much is kept others' blocks are taken
    assert pool.take(100 << 20) not in much and pool.take(50_000) not in little  # less is kept now
    before, large = pool.freed_so_far(), [pool.take(600 << 20) for _ in range(3)]
    assert all(large)
    for block in large:
        pool.give(block)
    assert pool.freed_so_far() > before and pool.kept_bytes() <= 1 << 30


def test_a_compiler_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "my-cc -m64")
    assert find_compiler() == ["my-cc", "-m64"]
    with pytest.raises(TensaurusError, match="the C compiler my-cc cannot be run: No such file"):
        link_library([DOUBLED.kernel()], tmp_path / "a.so")
    monkeypatch.delenv("CC")
    assert find_compiler() in (["cc"], ["gcc"], ["clang"])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tensaurus.kernels.library.shared_library.find_spec", lambda name: None)
    assert find_compiler() is None
    with pytest.raises(TensaurusError, match=r"need a C compiler.* pip install 'tensaurus\[compiler\]'"):
        link_library([DOUBLED.kernel()], tmp_path / "a.so")
    assert list(tmp_path.iterdir()) == []


def test_the_compiler_of_a_wheel_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler()[1:3] == ["-m", "ziglang"]
    paths = [link_library([AFFINE.kernel(), DOUBLED.kernel()], tmp_path / f"{name}.so") for name in "ab"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    feeds = AFFINE.feeds()
    session = session_of(Build(written(AFFINE), (paths[0],)))
    assert_computes(AFFINE, session.run(None, feeds)[0], feeds)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": b"no object"}, "the C compiler cc cannot link the kernels: "),
        ({"name": "eop_other"}, "cannot link the kernels: .*eop_other"),
        ({"name": "a b"}, "a kernel cannot have the name 'a b'"),
        ({"output": TensorType("float32", (1 << 16, 1 << 16))}, "a kernel cannot compute a tensor float32"),
        ({"cpu": "magic"}, "unknown processor feature 'magic'"),
    ],
)
def test_what_cannot_be_linked_is_said(change: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(TensaurusError, match=said) as caught:
        link_library([replace(DOUBLED.kernel(), **change)], tmp_path / "a.so")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_two_kernels_of_one_name_are_refused(tmp_path: Path) -> None:
    other = replace(AFFINE.kernel(), name=DOUBLED.kernel().name)
    with pytest.raises(TensaurusError, match="two kernels have the name eop_doubled"):
        link_library([DOUBLED.kernel(), other], tmp_path / "a.so")


# In a model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernels_node_is_read_as_its_expression(case: Case) -> None:
    program = program_of(case.node())
    model = export_model(program, kernels=known(case))
    onnx.checker.check_model(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17), (KERNEL_DOMAIN, 1)]
    read = import_model(model)
    assert read.roots == program.roots and format_program(read) == format_program(program)
    again = export_model(read, kernels=known(case))
    assert again == model
    plain = export_model(read)
    assert {node.domain for node in plain.graph.node} <= {""}


def test_an_expression_that_does_not_fit_stays_as_it_is() -> None:
    model = export_model(program_of(AFFINE.node()), kernels=known(AFFINE))
    for text in (b"L[i:3](x0[i])", b"nonsense(", b"L[i:13, j:40](x7[i, j])", b"\xff"):
        model.graph.node[0].attribute[0].s = text
        read = import_model(model)
        assert not read.roots[0].is_declared
        assert export_model(read).graph.node[0] == model.graph.node[0]


def test_kernels_within_a_body() -> None:
    """Both branches of an If whose condition is not known."""
    model = export_model(program_of(DOUBLED.node()), kernels=known(DOUBLED))
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    del shell.graph.node[:]
    branches_ = {}
    for name in ("then_branch", "else_branch"):
        nodes = [onnx.helper.make_node("Neg", ["v0"], ["n"]), model.graph.node[0]]
        graph = onnx.helper.make_graph(nodes, name, [], [model.graph.output[0]])
        graph.node[1].input[0] = "n"
        graph.node[1].output[0] = graph.output[0].name = f"{name}_y"
        branches_[name] = graph
    shell.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    shell.graph.node.append(onnx.helper.make_node("If", ["c"], ["y0"], **branches_))
    del shell.opset_import[1]
    program = import_model(shell)
    found = export_model(program, kernels=known(DOUBLED))
    bodies = [a.g for a in found.graph.node[0].attribute]
    assert [[node.domain for node in body.node] for body in bodies] == [["", KERNEL_DOMAIN]] * 2
    assert found.opset_import[1].domain == KERNEL_DOMAIN
    assert all(node.domain == "" for a in export_model(program).graph.node[0].attribute for node in a.g.node)


def test_the_runtimes_own_eyes_see_kernels(tmp_path: Path) -> None:
    build, runtime = build_of(tmp_path, AFFINE), backends.find("onnxruntime")
    assert isinstance(runtime, backends.Fusing) and isinstance(runtime, backends.Profiling)
    assert runtime.kernels(build) == [frozenset({"y0"})]
    ((kernel, seconds),) = runtime.profile(build, AFFINE.feeds(), threads=1, seconds=0.01)
    assert kernel.tensors == frozenset({"y0"}) and 0 < seconds < 1


@pytest.mark.parametrize("name", [n for n in backends.installed() if n not in ("onnxruntime", "reference")])
def test_other_runtimes_refuse_kernels(name: str, tmp_path: Path) -> None:
    build = build_of(tmp_path, AFFINE)
    for given in (build, Build(build.model)):
        with pytest.raises(BackendError, match=r"^\w+( does not run the model)?: ") as caught:
            backends.find(name).compile(given, threads=1)
        assert "\n" not in str(caught.value)


# A saved result


def result_of(build: Build) -> Result:
    summary = Summary("m", "onnxruntime", 1, 1.0, 1.0, 1.0, Equality(0.0, 0.0, True, ""), 1, 0)
    return Result(build.proto(), summary, build.libraries)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    result_of(build_of(tmp_path, AFFINE)).save(folder / "fast.onnx")
    return folder / "fast.onnx"


def invoke(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_result_is_saved_with_its_library(saved: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in saved.parent.iterdir()) == ["fast.kernels.so", "fast.onnx"]
    assert find_libraries(saved) == (library_path(saved),)
    (entry,) = (e for e in onnx.load(saved).metadata_props if e.key == METADATA_KEY)
    assert list(json.loads(entry.value)) == ["fast.kernels.so"]
    feeds = AFFINE.feeds()
    for session in (
        ts.session(saved),
        ts.session(str(saved), threads=1),
        ts.session(saved, options=ort.SessionOptions(), providers=["CPUExecutionProvider"]),
    ):
        assert_computes(AFFINE, session.run(None, feeds)[0], feeds)
    with pytest.raises(BackendError, match="reference accepts no session options"):
        ts.session(saved, backend="reference", options={})
    with pytest.raises(BackendError, match="unknown backend 'nobody'"):
        ts.session(saved, backend="nobody")
    result_of(build_of(tmp_path, AFFINE)).save(saved)  # over itself, the same and then another one
    other = build_of(tmp_path, TWIN)
    result_of(other).save(saved)
    (library_,) = find_libraries(saved)
    assert library_.read_bytes() == other.libraries[0].read_bytes()
    result_of(Build(export_model(program_of(AFFINE.node())).SerializeToString())).save(saved)
    assert find_libraries(saved) == ()  # without kernels; what lies there is nobody's


def test_a_model_without_a_folder_finds_its_library(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a slash is looked for in the system's folders."""
    monkeypatch.chdir(saved.parent)
    feeds = AFFINE.feeds()
    assert_computes(AFFINE, ts.session("fast.onnx").run(None, feeds)[0], feeds)


def test_a_library_that_does_not_belong_is_refused(saved: Path) -> None:
    library_ = library_path(saved)
    whole = library_.read_bytes()
    library_.write_bytes(whole + b"more")
    with pytest.raises(TensaurusError, match=r"fast\.onnx: its kernel library fast\.kernels\.so is not"):
        ts.session(saved)
    library_.unlink()
    with pytest.raises(TensaurusError, match=r"fast\.kernels\.so cannot be read: No such file"):
        ts.session(saved)
    for command in (("verify", saved, saved), ("bench", saved, "--peers", "onnxruntime", "--ours", "none")):
        status, words = invoke(*command)
        assert status == 2 and "cannot be read" in words and "Traceback" not in words
    model = onnx.load(saved)
    for name in ("../fast.kernels.so", "/etc/passwd", ""):
        model.metadata_props[0].value = json.dumps({name: "0"})
        assert model.metadata_props[0].key == METADATA_KEY
        onnx.save(model, saved)
        with pytest.raises(TensaurusError, match="is not in the model's folder"):
            find_libraries(saved)


@pytest.mark.parametrize("content", [b"", b"\xff" * 30, b"\x72\x7f", b"text of no model"])
def test_what_is_no_model_names_no_library(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    assert find_libraries(path) == () == find_libraries(tmp_path / "absent.onnx") == find_libraries(tmp_path)


def test_metadata_are_found_wherever_they_stand(saved: Path) -> None:
    """Fields of a message may come in any order, and unknown ones between them."""
    whole = onnx.load(saved)
    first, rest = onnx.ModelProto(metadata_props=whole.metadata_props), onnx.ModelProto()
    rest.CopyFrom(whole)
    del rest.metadata_props[:]
    unknown = b"\xc2\x3e\x03abc" + b"\xc9\x3e12345678" + b"\xcd\x3e1234" + b"\xc0\x3e\x96\x01"
    saved.write_bytes(unknown + first.SerializeToString() + rest.SerializeToString())
    assert find_libraries(saved) == (library_path(saved),)


def test_another_models_library_is_not_overwritten(saved: Path, tmp_path: Path) -> None:
    other = result_of(build_of(tmp_path, TWIN))
    before = library_path(saved).read_bytes()
    copy = saved.with_name("copy.onnx")
    shutil.copy(saved, copy)  # needs the same library
    with pytest.raises(TensaurusError, match=r"overwrite fast\.kernels\.so, and copy\.onnx needs it\. Give"):
        other.save(saved)
    result_of(build_of(tmp_path, AFFINE)).save(saved)  # the same library may stay
    copy.unlink()
    saved.unlink()  # now it is nobody's, as far as can be seen
    with pytest.raises(TensaurusError, match=r"fast\.onnx does not name it"):
        other.save(saved)
    with pytest.raises(TensaurusError, match=r"fast\.onnx does not name it"):
        require_library_path(saved)
    assert library_path(saved).read_bytes() == before and not saved.exists()
    model = tmp_path / "model.onnx"
    onnx.save(export_model(program_of(AFFINE.node())), model)
    start = perf_counter()
    status, words = invoke("optimize", model, "-o", saved, "--time-limit", 60)
    assert status == 2 and "does not name it" in words and perf_counter() - start < 20  # before the long work


def test_a_result_without_kernels_takes_the_old_ones_library_away(saved: Path, tmp_path: Path) -> None:
    """Else the next result with kernels could not be saved; a library that others need stays."""
    plain, library = export_model(program_of(AFFINE.node())), library_path(saved)
    copy = saved.with_name("copy.onnx")
    shutil.copy(saved, copy)
    save_with_libraries(plain, saved, ())
    assert library.exists() and find_libraries(saved) == ()
    shutil.copy(copy, saved)
    copy.unlink()
    save_with_libraries(plain, saved, ())
    assert not library.exists()
    result_of(build_of(tmp_path, TWIN)).save(saved)
    library.write_bytes(b"a user's own file")
    save_with_libraries(plain, saved, ())
    assert library.read_bytes() == b"a user's own file"


def test_commands_load_the_library(saved: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    onnx.save(export_model(program_of(AFFINE.node())), plain)
    status, words = invoke("verify", plain, saved)
    assert status == 0, words
    status, words = invoke("verify", saved, plain)
    assert status == 0, words


def test_the_bench_loads_the_library(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot load it gets a row that says so."""
    monkeypatch.setattr("tensaurus.app.benchmark.TURN_SECONDS", 0.01)
    monkeypatch.setattr("tensaurus.app.benchmark.MIN_PEAK_SHARE", 0.0)
    plain = tmp_path / "plain.onnx"
    onnx.save(export_model(program_of(AFFINE.node())), plain)
    peers = ["onnxruntime", *(name for name in ("openvino",) if name in backends.installed())]
    setting = Setting("a processor", 2, 2, "onnxruntime 1", "abc", "2026-01-01", "AVX2", 200.0, 100.0, 25.0)
    benchmark = Benchmark(setting, peers, against=[saved], rounds=1)
    rows = {row.contender: row for row in benchmark.measure_model(*select_models([str(plain)]))}
    assert rows[f"{saved} on onnxruntime"].error < 1e-6
    others = [rows[f"{saved} on {name}"] for name in peers[1:]]
    assert all(not row.has_run and row.note for row in others)
    first, *others = Benchmark(setting, peers, rounds=1).measure_model(*select_models([str(saved)]))
    assert first.has_run and not any(row.has_run for row in others)


def test_a_result_is_optimized_again(saved: Path, tmp_path: Path) -> None:
    """Its kernels are expressions again; what is not faster stays as it is, with its library."""
    result = ts.optimize(saved, steps=2, database=tmp_path / "db.sqlite")
    again = tmp_path / "again.onnx"
    result.save(again)
    feeds = AFFINE.feeds()
    assert_computes(AFFINE, ts.session(again).run(None, feeds)[0], feeds)
    if not result.rewrites:
        assert [path.name for path in find_libraries(again)] == ["again.kernels.so"]


def closure(*names: str) -> set[str]:
    """The packages, and what they need."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            try:
                needs = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            found.add(name)
            waiting += [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]  # type: ignore[index]
    return found


def test_a_clean_environment_runs_a_result(saved: Path, tmp_path: Path) -> None:
    """The README's lines, where there is nothing but onnxruntime, numpy and what these need."""
    site = tmp_path / "site"
    site.mkdir()
    for name in closure("onnxruntime", "numpy"):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            (site / top).symlink_to(Path(str(package.locate_file(top))))
    (lines,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
        if "register_custom_ops_library" in block
    )
    feeds = AFFINE.feeds()
    np.savez(saved.parent / "feeds.npz", **feeds)
    script = f"""
import sys
sys.path.append({str(site)!r})
import numpy as np
inputs = dict(np.load("feeds.npz"))
{lines}
np.save("found.npy", outputs[0])
for name in ("tensaurus", "halide", "onnx"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{{name}} is here")
"""
    command = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(
        command, cwd=saved.parent, env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_computes(AFFINE, np.load(saved.parent / "found.npy"), feeds)


# Subnormal numbers


@pytest.mark.parametrize("case", [AFFINE, NESTED, DOUBLED], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_flushes_for_itself_alone(case: Case, threads: int, tmp_path: Path) -> None:
    """What no result can tell; whoever computes before and after it on its threads keeps them."""
    kernel = case.kernel()
    inputs = [value_info(f"v{k}", kind) for k, kind in enumerate(case.types)]
    tiny = np.float32(1e-40)
    feeds = {name: np.full_like(value, tiny) for name, value in case.feeds().items()}
    if case is NESTED:
        feeds = {"v0": feeds["v0"] - 1}  # (x + 1) * (x + 1): what it adds to is 0, and nothing is subnormal
    for flushing in (False, True):
        path = link_library([replace(kernel, flushing=flushing)], tmp_path / f"{flushing}.so")
        model = onnx.load_from_string(model_calling(kernel, inputs))
        model.graph.node.append(onnx.helper.make_node("Mul", ["v0", "two"], ["t"]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), "two"))
        model.graph.output.append(onnx.helper.make_tensor_value_info("t", 1, None))
        session = session_of(Build(model.SerializeToString(), (path,)), threads)
        for _ in range(3):
            found, beside = session.run(None, feeds)
            np.testing.assert_array_equal(beside, feeds["v0"] * np.float32(2))
            assert (tiny * np.float32(1)) != 0  # on this thread
            if case is NESTED:
                assert not found.any()
            else:
                assert found.all() == (not flushing) and found.any() == (not flushing)


def test_the_processor_is_told_what_it_was_told_when_a_kernel_fails(tmp_path: Path) -> None:
    path = link_library([replace(GREEDY.kernel(), flushing=True)], tmp_path / "a.so")
    for threads in (1, 2):
        session = session_of(Build(written(GREEDY), (path,)), threads)
        with pytest.raises(Exception, match="no memory for scratch"):
            session.run(None, GREEDY.feeds(0))
        assert (np.float32(1e-40) * np.float32(1)) != 0


def test_which_kernels_flush(tmp_path: Path) -> None:
    """Those of which no result can tell: not one whose result is compared with 0, or divided by."""
    doubled = DOUBLED.node()

    def flushing(root: Node, *cases: Case) -> set[str]:
        builds = BuildCache(tmp_path, kernels=known(*cases), link=linked_library)
        return set(builds._find_flushing_kernels(program_of(root), builds(program_of(root)).proto()))

    one, zero = constant(np.float32(1)), constant(np.float32(0))
    assert flushing(doubled, DOUBLED) == {"eop_doubled"}
    assert flushing(apply(registry["Add"], [doubled, one]), DOUBLED) == {"eop_doubled"}
    assert flushing(apply(registry["Greater"], [doubled, one]), DOUBLED) == {"eop_doubled"}
    assert not flushing(apply(registry["Greater"], [doubled, zero]), DOUBLED)
    assert not flushing(apply(registry["Div"], [one, doubled]), DOUBLED)
    assert not flushing(apply(registry["Log"], [doubled]), DOUBLED)
    large = constant(np.float32(1e38))
    scaled = apply(registry["Mul"], [apply(registry["Mul"], [doubled, large]), large])
    assert not flushing(scaled, DOUBLED)
    both = apply(registry["Div"], [AFFINE.node(), doubled])
    assert flushing(both, AFFINE, DOUBLED) == set()  # the quotient by what may be zero tells of both
    twice = apply(registry["Add"], [apply(registry["Div"], [one, doubled]), DOUBLED.node([one])])
    assert not flushing(twice, DOUBLED)  # one kernel at two places
