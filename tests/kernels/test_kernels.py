"""Generated kernels compute what the evaluator does, and touch nothing but their buffers.

`python bench/kernels.py --operators` runs every example by more schedules, and without arguments 5,000 random
expressions.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("halide")

from kernel_way import CORES, Case, findings, of_examples, schedules, wrong
from kernels import VERDICTS, reports
from servants import Fallen, Servant
from small_kernels import instructions, program_of

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.expression_text import parse, show
from tensaurus.expr.ir.scope import Reduce, Tensor
from tensaurus.expr.ir.walk import bodies
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.graph.ir.kernel import Kernel
from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.onnx.build_cache import BuildCache
from tensaurus.kernels.halide.compile import compile_kernel, input_tensors, jit
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.halide.pipeline import build_pipeline, schedulable_stages
from tensaurus.kernels.halide.schedule import MAX_TASKS
from tensaurus.kernels.library.shared_library import linked_library
from tensaurus.kernels.stages.loop_nest import find_nests
from tensaurus.kernels.stages.sketch import (
    BlockedBand,
    BlockSketch,
    FlatSketch,
    format_schedule,
    nest_sketches,
    parse_schedule,
)
from tensaurus.kernels.tune.guard_pages import PAGE_BYTES, guarded_array
from tensaurus.kernels.tune.schedule_space import candidate_bands, rank_sketches
from tensaurus.kernels.tune.target_core import TargetCore
from tensaurus.ops import TensorType, registry
from tensaurus.ops.examples import parse_example

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")

# The examples that have no kernel, and why.
UNLOWERED = {
    "DequantizeLinear i8[2,3] f16[]={0.5} [0]": "elements of float16",
    "DequantizeLinear i8[2,3] f16[]={0.5} output_dtype=float32 [0]": "elements of float16",
}
# Outputs that ONNX leaves open where an input is NaN or infinite: integers made of them.
OPEN = ("int", "uint")
SHARE = 8  # one of so many examples is run here, beside the first of each operator


@cache
def examples(strange: bool = False) -> list[Case]:
    return [case for case in of_examples(strange) if case.name not in UNLOWERED]


def firsts(cases: list[Case]) -> list[int]:
    """The places of the first example of each operator."""
    return list({case.name.split()[0]: place for place, case in reversed(list(enumerate(cases)))}.values())


def chosen(case: Case) -> tuple[Any, str]:
    """One of the schedules and processors, by the name."""
    rng = Random(crc32(case.name.encode()))
    core, cpu = rng.choice(CORES)
    return rng.choice(schedules(case, core, rng, 2)), cpu


def case_of(inputs: str, text: str) -> Case:
    """An expression in words, with elements for its inputs."""
    example = parse_example(inputs)
    types = tuple(kind for kind in example.types if kind is not None)
    arrays = [np.asarray(value) for value in example.values(np.random.default_rng(0))]
    scope = intern_scope(parse(text, {x.name: x for x in input_tensors(types)}))
    return Case(text, scope, types, arrays)


def in_a_process(work: Callable[[Any], Any], messages: list[Any], folder: Path) -> Iterator[Any]:
    servant = Servant(lambda message, _: work(message), folder / "log", 60.0, 4 << 30)
    try:
        for message in messages:
            yield servant.ask(message)
    finally:
        servant.close()


def test_what_is_not_lowered_is_listed() -> None:
    found = {}
    for case in of_examples():
        try:
            stages, inputs = schedulable_stages(case.scope, input_tensors(case.types))
            core, _ = CORES[0]
            build_pipeline(stages, inputs, nest_sketches(schedules(case, core, Random(0), 0)[0]))
        except LoweringError as error:
            found[case.name] = str(error)
    assert found == UNLOWERED


def test_examples_of_every_operator(tmp_path: Path) -> None:
    cases = examples()
    places = set(firsts(cases)) | {
        place for place, case in enumerate(cases) if crc32(case.name.encode()) % SHARE == 0
    }

    def work(place: int) -> str:
        schedule, cpu = chosen(cases[place])
        found = wrong(cases[place], schedule, cpu)
        return found and f"{cases[place].name}: {found} {schedule} {cpu}"

    assert [found for found in in_a_process(work, sorted(places), tmp_path) if found] == []


def test_infinities_and_nan_of_elementwise_operators(tmp_path: Path) -> None:
    cases = [
        case
        for case in examples(strange=True)
        if not any(isinstance(body, Reduce) for body in bodies(case.scope))
        and not case.dtype.startswith(OPEN)
        and any(array.dtype.kind == "f" for array in case.arrays)
    ]

    def work(place: int) -> str:
        schedule, cpu = chosen(cases[place])
        found = wrong(cases[place], schedule, cpu)
        return found and f"{cases[place].name}: {found} {schedule} {cpu}"

    assert [found for found in in_a_process(work, firsts(cases), tmp_path) if found] == []


# Expressions whose vectors gather an operand; sizes below and above vectors, and of none a multiple.
GATHERS = [
    ("f32[3,5,16]", "L[c:48, i:5](x0[c // 16, i, c % 16])"),  # out of blocks of channels
    ("f32[48,7]", "L[c:3, i:7, l:16](x0[16*c + l, i])"),  # into blocks of channels
    ("f32[37,19]", "L[i:19, j:37](x0[j, i])"),
    ("f32[37,3]", "L[i:3, j:37](exp(x0[j, i]))"),
    ("f32[17,5,4]", "L[i:4, j:5, k:17](x0[k, j, i])"),  # two axes within a cache line
    ("f32[2,33,18]", "L[h:2, i:18, j:33](add(x0[h, j, i], x0[h, j - 1, i + 1] | 2))"),
    ("f32[33,18] f32[18,33]", "L[i:18, j:33](add(x0[j, i], x1[i, j]))"),
    ("f32[33,40]", "L[i:18, j:33](x0[j, 2*i + 3])"),
    ("i64[20,17]", "L[i:17, j:20](mul(x0[j, i], 3))"),
    ("bool[20,17]", "L[i:17, j:20](x0[j, i])"),
]


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize(("inputs", "text"), GATHERS)
def test_what_vectors_gather_is_unrolled_beside_them(inputs: str, text: str, tmp_path: Path) -> None:
    """Every such sketch computes the right numbers, and touches nothing beyond an array."""
    case = case_of(inputs, text)
    stages, _ = schedulable_stages(case.scope, input_tensors(case.types))
    for core, cpu in CORES:
        (pool,) = rank_sketches(stages, core)
        beside = [(sketch,) for sketch in pool if isinstance(sketch, FlatSketch) and sketch.beside]
        assert beside and all(parse_schedule(format_schedule(schedule)) == schedule for schedule in beside)
        most = replace(beside[0][0], beside=tuple((place, 99) for place, _ in beside[0][0].beside))
        less = replace(beside[0][0], beside=tuple((place, 3) for place, _ in beside[0][0].beside), unroll=2)
        tried = [*beside, (most,), (less,)]
        found = [*in_a_process(lambda s, cpu=cpu: wrong(case, s, cpu), tried, tmp_path)]
        assert found == [""] * len(tried), dict(zip(map(format_schedule, tried), found, strict=True))


def test_only_gathering_vectors_have_axes_beside_them() -> None:
    for text, shape in (
        ("L[i:40, j:33](x0[i, j])", (40, 33)),
        ("L[i:40, j:33](x0[i])", (40,)),
        ("L[i:40](x0[()])", ()),
        ("L[()](x0[3])", (40,)),
    ):
        x = Tensor("x0", shape)
        stages, _ = schedulable_stages(intern_scope(parse(text, {"x0": x})), [x])
        (pool,) = rank_sketches(stages, TargetCore(512, 32, 2))
        assert pool and not any(isinstance(sketch, FlatSketch) and sketch.beside for sketch in pool)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_every_operator_as_a_custom_operator(tmp_path: Path) -> None:
    """All of them in one library and one model of a stock onnxruntime."""
    cases = [examples()[place] for place in firsts(examples())]
    made: dict[Node, tuple[Case, Kernel]] = {}
    feeds = {}
    for number, case in enumerate(cases):
        names = [f"c{number}v{place}" for place in range(len(case.types))]
        inputs = [source(name, kind) for name, kind in zip(names, case.types, strict=True)]
        node = apply(registry["eop"], inputs, {"scope": show(case.scope)})
        schedule, _ = chosen(case)
        made[node] = case, compile_kernel(case.scope, case.types, node.tensor, schedule, "x86-64-v3")
        feeds.update(zip(names, case.arrays, strict=True))
    builds = BuildCache(
        tmp_path, kernels=lambda node: made[node][1] if node in made else None, link=linked_library
    )
    build = builds(program_of(*made))
    assert [instructions(path) for path in build.libraries] == [{"AVX2"}]
    for threads in (1, 2):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        for path in build.libraries:
            options.register_custom_ops_library(str(path))
        assert isinstance(build.model, bytes)
        session = ort.InferenceSession(build.model, options, providers=["CPUExecutionProvider"])
        wanted = {item.name for item in session.get_inputs()}
        results = session.run(None, {name: value for name, value in feeds.items() if name in wanted})
        bad = [
            f"{case.name}: {found}"
            for (case, _), result in zip(made.values(), results, strict=True)
            if (found := case.differs(np.asarray(result)))
        ]
        assert bad == []


def test_sixty_random_expressions() -> None:
    found = list(reports(3, range(60)))
    assert [r for r in found if r.verdict not in ("right", "refused", "inexact")] == []
    assert sum(r.verdict == "right" for r in found) > 40
    assert set(VERDICTS) >= {r.verdict for r in found}


# What was wrong once.
MENDED = [
    ("f32[5]", "L[i:3](sum[r:7](x0[i]))"),
    ("f32[5]", "L[i:3](prod[r:6](x0[i]))"),
    ("f32[5]", "L[i:5](mul(sum[r:4](1/4), x0[i]))"),
    ("u8[5]", "L[i:5](mul(prod[r:3](3), x0[i]))"),
    ("f32[3]", "L[i:3](max[r:0](x0[i]))"),
    ("f32[7,0]", "L[i:7](sum[r:0](x0[i, r]))"),
    ("f32[]", "L[i:33](L[j:40](exp(x0[()]))[2*i - 2] | 2)"),
    ("f32[4,3]", "L[i:33](L[j:3, k:4](x0[k, j])[i - 2, i - 1] | 2)"),
    ("f32[33]", "L[i:33](add(x0[i], [[0, 1, 2], [3, 4, 5]][i % 2, (i // 2) % 3]))"),
    ("f32[22,3]", "L[i:8](x0[3*i, (i + 1) % 3])"),
    ("i32[11]", "L[i:4, j:3](sum[r:17](x0[2*(j // 2) + i - r + 4*(r // 4) + 5]))"),
    ("i32[40]", "L[i:3](max[r:3, s:7](mul(x0[i + r + s], s)))"),
    ("f32[20]", "L[i:2](exp(sum[r:16](x0[2*i + r + 2])))"),
    ("f32[4,3,28]", "L[i:28](sum[r:4, s:3](x0[r, s, i]))"),
    ("f32[4,7]", "L[i:8](sum[r:4](mul(x0[r, 6 - i // 2] if -(i % 2) >= 0 else 0, x0[r, 1])))"),
    ("f32[9] f32[3]", "L[i:8](sum[r:2](add(x0[i], x1[r] if (i + r) // 2 - 1 >= 0 else 0)))"),
    ("f32[9] i64[3]<4", "L[i:3](sum[r:2](x0[2*look(x1[i], 0, 3) + r]))"),
    ("bool[3,9]", "L[i:3](max[r:9](x0[i, r]))"),
    ("f32[1,1]", "L[()](sum[r:1](x0[r, 0]))"),
    ("f32[5]", "L[()](add(x0[0] | 2, x0[2]))"),
]


@pytest.mark.parametrize(("inputs", "text"), MENDED)
def test_mended(inputs: str, text: str, tmp_path: Path) -> None:
    case = case_of(inputs, text)
    work = lambda place: list(findings(case, [(place, 2, False)], Random(0)))  # noqa: E731
    assert [
        f for found in in_a_process(work, [0, 1], tmp_path) for f in found if f.verdict != "refused"
    ] == []


def test_reasons_are_clear() -> None:
    def refused(inputs: str, text: str, schedule: Any = None) -> str:
        types = tuple(kind for kind in parse_example(inputs).types if kind is not None)
        scope = parse(text, {x.name: x for x in input_tensors(types)})
        with pytest.raises(LoweringError) as caught:
            jit(scope, types, schedule or (FlatSketch(16),), "x86-64-v3")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert refused("f16[3]", "L[i:3](x0[i])") == "elements of float16"
    assert refused("f32[3]", "L[i:3](to_float16(x0[i]))") == "elements of float16"
    assert refused("f32[N]", "L[i:3](x0[i])") == "sizes that are no numbers: N"
    assert "32-bit" in refused("u8[3000000000]", "L[i:3](x0[i])")
    assert "1 nests" in refused("f32[3]", "L[i:3](x0[i])", (FlatSketch(16), FlatSketch(16)))


def test_nothing_is_touched_beyond_an_array(tmp_path: Path) -> None:
    def work(where: tuple[bool, int]) -> int:
        last, place = where
        array = guarded_array([PAGE_BYTES + 100], np.uint8, last)
        return ctypes.c_uint8.from_address(array.ctypes.data + place).value

    def answer(last: bool, place: int) -> Any:
        return next(in_a_process(work, [(last, place)], tmp_path))

    assert (
        answer(True, 0)
        == answer(True, PAGE_BYTES + 99)
        == answer(False, 0)
        == answer(False, PAGE_BYTES + 99)
        == 0
    )
    for last, place in ((True, PAGE_BYTES + 100), (False, -1)):
        with pytest.raises(Fallen, match="SIGSEGV"):
            answer(last, place)
    assert guarded_array([3, 5], np.float32, alignment=64).ctypes.data % 64 == 0
    assert guarded_array([0], np.float32).size == 0


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("L[i:7, j:33, k:64](max(x0[i, j, k], 0))", (7, 33, 64)),  # its axes become one
        ("L[i:40, j:50, k:20](x0[i, k, j])", (40, 20, 50)),
        ("L[i:500, j:64](mul(x0[i, j], sum[r:64](x0[i, r])))", (500, 64)),
    ],
)
def test_maps_have_vectors_and_few_tasks(text: str, shape: tuple[int, ...]) -> None:
    """A task for each element computes the right numbers, two hundred times slower."""
    x = Tensor("x0", shape)
    stages, plain = schedulable_stages(intern_scope(parse(text, {"x0": x})), [x])
    core = TargetCore(512, 32, 2)
    for sketches_ in zip(*rank_sketches(stages, core), strict=False):
        lowered, func = build_pipeline(stages, plain, sketches_)
        said = _lowered(func, lowered)
        tasks = [int(n) for n in re.findall(r"halide_do_par_for\([^)]*\)[^)]*?, 0, (\d+)", said)]
        assert "ramp(" in said, said
        assert tasks and all(2 <= n <= MAX_TASKS for n in tasks), said


@pytest.mark.parametrize(("size", "lanes", "vectors"), [(14, 16, 1), (5, 8, 1), (19, 16, 2)])
def test_a_vector_beyond_its_axis_is_as_long_as_the_axis(size: int, lanes: int, vectors: int) -> None:
    """Accumulators of a vector of which a part is read stay in memory, which takes 15 times as long."""
    x, w = Tensor("x0", (8, size, size)), Tensor("x1", (8, 3, 3))
    text = f"L[c:8, i:{size}, j:{size}](sum[r:3, s:3](mul(x0[c, i + r - 1, j + s - 1] | 0, x1[c, r, s])))"
    scope = intern_scope(parse(text, {"x0": x, "x1": w}))

    stages, plain = schedulable_stages(scope, [x, w])
    sketches_ = parse_schedule(f"block(v=2*{lanes}x{vectors}, u=1:4, t=0:1, k=1!0!, c=x0@1, p=0)")
    lowered, func = build_pipeline(stages, plain, sketches_)
    widths = {int(n) for n in re.findall(r"\bx(\d+)\(", _lowered(func, lowered))}  # as in x16(0.0f)
    assert size in widths and lanes not in widths


@pytest.mark.nightly
def test_products_in_the_loops_of_others_and_bands() -> None:
    """Each by one schedule, one in three with Halide's checks too."""
    found = list(reports(1, range(40), "nests"))
    assert [r for r in found if r.verdict not in VERDICTS[:3]] == []
    assert sum(r.verdict == "right" for r in found) >= 38


PAIR = """
L[c:32, i:14, j:14](sum[p:3, q:3](mul(x2[c, p, q],
    L[c:32, i:14, j:14](max(sum[d:8](mul(x0[d, i, j], x1[c, d])), 0))[c, i + p - 1, j + q - 1] | 0)))
"""
BAND = "L[h:2, i:48, j:17](sum[d:8](mul(x0[h, i, d], x1[h, i + {step}*j - {shift}, d] | 0)))"


def test_a_product_is_computed_where_its_reader_has_a_few_channels() -> None:
    inputs = [Tensor("x0", (8, 14, 14)), Tensor("x1", (32, 8)), Tensor("x2", (32, 3, 3))]
    scope = intern_scope(parse(" ".join(PAIR.split()), {x.name: x for x in inputs}))
    stages, plain = schedulable_stages(scope, inputs)
    inner, outer = rank_sketches(stages, TargetCore(512, 32, 2))
    assert isinstance(inner[0], BlockSketch) and inner[0].parallel == 0
    chosen_ = next(s for s in outer if isinstance(s, BlockSketch) and s.tile[0] == (0, 16))
    lowered, func = build_pipeline(stages, plain, (inner[0], chosen_))
    said = _lowered(func, lowered)
    found = re.findall(r"allocate s\d+(?:\$\d+)?\[float32 \* 14 \* (\d+) \* (\d+)", said)
    assert {int(n) * int(m) for n, m in found} == {14 * 16}, said  # channels of one turn, not 32


@pytest.mark.parametrize(("step", "rows"), [(1, 16), (1, 48), (2, 8), (4, 4)])
def test_a_band_is_blocks_of_rows(step: int, rows: int) -> None:
    inputs = [Tensor("x0", (2, 48, 8)), Tensor("x1", (2, 48, 8))]
    scope = intern_scope(parse(BAND.format(step=step, shift=8 * step), {x.name: x for x in inputs}))
    blocks = [band.rows for band in candidate_bands(scope)]
    assert blocks and all(48 % (step * n) == 0 for n in blocks)
    stages, _ = schedulable_stages(scope, inputs, (BlockedBand("s0", 1, rows),))
    block = stages[0]
    assert block.points == 2 * 48 * (17 + rows - 1) * 8  # a block is so much wider than the band
    with pytest.raises(ValueError, match="another expression"):
        schedulable_stages(scope, inputs, (BlockedBand("s0", 1, 5),))
    with pytest.raises(ValueError, match="another expression"):
        schedulable_stages(scope, inputs, (BlockedBand("s0", 2, 1),))


@pytest.mark.parametrize(("text", "count"), [("exp(x0[i, r])", 2), ("max(x0[i, r], 0)", 1), ("x0[r, i]", 1)])
def test_what_costs_much_is_not_computed_for_every_product(text: str, count: int) -> None:
    inputs = [Tensor("x0", (16, 16)), Tensor("x1", (16, 8))]
    whole = f"L[i:16, j:8](sum[r:16](mul(L[i:16, r:16]({text})[i, r], x1[r, j])))"
    stages, _ = schedulable_stages(intern_scope(parse(whole, {x.name: x for x in inputs})), inputs)
    assert len(find_nests(stages)) == count


JOINED = "L[c:32, i:16](max(x0[c, i] if 15 - c >= 0 else x1[c - 16, i], 0))"


@pytest.mark.parametrize(("results", "copied"), [(32, True), (3, False)])
def test_what_is_joined_may_be_copied_for_many_results(results: int, copied: bool) -> None:
    inputs = [Tensor("x0", (16, 16)), Tensor("x1", (16, 16)), Tensor("x2", (results, 32))]
    text = f"L[f:{results}, i:16](sum[r:32](mul(x2[f, r], {JOINED}[r, i])))"
    stages, _ = schedulable_stages(intern_scope(parse(text, {x.name: x for x in inputs})), inputs)
    (pool,) = rank_sketches(stages, TargetCore(512, 32, 1))
    along = [sketch for sketch in pool if isinstance(sketch, BlockSketch) and sketch.vector == 1]
    found = [any(name == "s0" for name, _ in sketch.copies) for sketch in along]
    assert any(found) == copied and not all(found)  # to compute it again may be faster, too


@pytest.mark.parametrize("shift", [1, 3, -1])
@pytest.mark.parametrize("size", [8, 10])
def test_phases_with_one_tap_have_dense_vectors(shift: int, size: int) -> None:
    """What a transposed convolution by 2x2 in steps of 2 is derived to divides by 2 beside its places."""
    half = f"((k + {shift}) // 2)"
    tap = f"2*{half} - k - {shift - 1}"
    text = f"L[i:3, k:{size}](sum[r:4](mul(x0[r, -{half} + k + 2] | 0, x1[r, i, {tap}])))"
    x, w = Tensor("x0", (4, size)), Tensor("x1", (4, 3, 2))
    scope = intern_scope(parse(text, {"x0": x, "x1": w}))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape).astype(np.float32) for t in (x, w)]
    lifted = {t: a.astype(np.float64) for t, a in zip((x, w), arrays, strict=True)}
    wanted = interpret(scope, lifted, Reals())
    stages, _ = schedulable_stages(scope, (x, w))
    assert len(stages[-1].axes) == 3  # of three results, places and phases
    types = [TensorType("float32", t.shape) for t in (x, w)]
    for sketch in rank_sketches(stages, TargetCore(512, 32, 1))[-1][:3]:
        got = np.full(wanted.shape, np.nan, np.float32)
        jit(scope, types, (sketch,), checks=True)(arrays, got)()
        assert np.allclose(got, wanted, atol=1e-5)


def test_what_is_no_band_has_no_blocks() -> None:
    x = {name: Tensor(name, (2, 48, 8)) for name in ("x0", "x1")}
    for index in ("j - i + 30", "j", "i"):  # the other way, no row, no column
        text = f"L[h:2, i:20, j:17](sum[d:8](mul(x0[h, i, d], x1[h, {index}, d])))"
        assert candidate_bands(intern_scope(parse(text, x))) == [], index


def _lowered(func: Any, lowered: Any) -> str:
    import halide as hl

    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.txt"
        target = hl.Target("x86-64-linux-avx-avx2-avx512-avx512_skylake-f16c-fma-sse41-no_asserts")
        func.compile_to_lowered_stmt(str(file), lowered.inputs, hl.StmtOutputFormat.Text, target)
        return file.read_text()
