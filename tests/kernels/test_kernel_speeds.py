"""What tuned kernels tell of the seconds of others."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensaurus.expr.ir.expression_text import parse
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.polynomial import polynomial
from tensaurus.expr.sizes.symbol import Symbol
from tensaurus.graph.ir.node import apply, source
from tensaurus.kernels.halide.compile import input_tensors
from tensaurus.kernels.tune.compiled_objects import ObjectCompiler
from tensaurus.kernels.tune.kernel_speeds import (
    LEAST_MULTIPLE,
    LEAST_MULTIPLE_OF_SEVERAL,
    LOSS,
    MIN_OPTIMISM,
    OPTIMISM,
    KernelSpeeds,
    form_distance,
)
from tensaurus.kernels.tune.reduction_histories import MIN_TUNING_SECONDS
from tensaurus.kernels.tune.schedule_reuse import ReductionForm, count_form_work
from tensaurus.kernels.tune.tune import Tuner
from tensaurus.kernels.tune.tuned_kernels import FORM_TOLERANCE, TunedKernels
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.database import Database, Measurement
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.roofline import Roofline

ROOFLINE = Roofline(operation=1e-9, cached=1e-12, streamed=1e-12)


def product(rows: int, columns: int, depth: int, stride: int = 1) -> str:
    """The form of a matrix product; with a stride it reads only some columns of its first factor."""
    return (
        f"float32 sum[{rows},{columns} over {depth}] of o0[{rows}:1*0, {stride * depth}:{stride}*2]; "
        f"o1[{depth}:1*2, {columns}:1*1], with 0 dear functions"
    )


def told(*known: tuple[str, float]) -> KernelSpeeds:
    """Speeds after these forms were tuned, each a multiple of its time at the peaks."""
    speeds = KernelSpeeds(lambda: ROOFLINE)
    for form, multiple in known:
        speeds.learn(form, multiple * peak_seconds(form))
    return speeds


def peak_seconds(form: str) -> float:
    return ROOFLINE.seconds(*count_form_work(form))


def test_the_work_of_a_form() -> None:
    one = "float32 sum[9 over 64] of o0[9:1*0, 64:1*1]; o1[64:1*1], with 0 dear functions"
    assert count_form_work(one) == (2 * 9 * 64, 4 * (9 * 64 + 64 + 9))
    row = "float64 max[ over 7] of o0[7:?], with 1 dear functions"
    assert count_form_work(row) == (2 * 7, 8 * (7 + 1))
    operations, moved = count_form_work(f"{one}\n{row}")
    assert (operations, moved) == (2 * 9 * 64 + 14, 4 * 649 + 64)
    with pytest.raises(ValueError, match="not the text of a form"):
        count_form_work("sum")


def test_a_form_that_was_tuned_is_expected_to_take_about_as_long() -> None:
    form = product(64, 48, 32)
    speeds = told((form, 1.5), (product(64, 48, 16), 9.0))
    assert isclose(speeds.multiple(form), 1.5)
    assert isclose(speeds.least_seconds(form), OPTIMISM * 1.5 * peak_seconds(form))
    speeds.learn(form, 1.7 * peak_seconds(form))  # a kernel of the form that computes more
    assert isclose(speeds.multiple(form), 1.5)
    speeds.forget(form)
    speeds.learn_multiple(form, 1.5)  # of another machine of the kind
    assert isclose(speeds.least_seconds(form), (OPTIMISM - LOSS) * 1.5 * peak_seconds(form))


def test_other_sizes_are_expected_to_be_as_far_from_the_peaks() -> None:
    near, far, asked = product(64, 48, 32), product(1024, 4096, 999), product(64, 48, 31)
    speeds = told((near, 1.5), (far, 15.0))
    assert 1.4 < speeds.least_seconds(asked) / (OPTIMISM * peak_seconds(asked)) < 2.5
    assert speeds.multiple(asked) == 0.0
    speeds.learn(asked, 3.0 * peak_seconds(asked))
    assert isclose(speeds.least_seconds(asked), OPTIMISM * 3.0 * peak_seconds(asked))
    speeds.forget(asked)
    assert 1.4 < speeds.least_seconds(asked) / (OPTIMISM * peak_seconds(asked)) < 2.5


def test_another_family_tells_nothing() -> None:
    """Another stride reads memory otherwise, others compute more: the least multiple of all counts."""
    speeds = told((product(64, 48, 32), 9.0))
    form = product(64, 48, 32, stride=2)
    assert isclose(speeds.least_seconds(form), LEAST_MULTIPLE * peak_seconds(form))
    largest = product(64, 48, 32).replace("sum[", "max[")
    assert isclose(speeds.least_seconds(largest), LEAST_MULTIPLE * peak_seconds(largest))
    both = f"{form}\n{largest}"
    assert isclose(speeds.least_seconds(both), LEAST_MULTIPLE_OF_SEVERAL * peak_seconds(both))


@pytest.mark.parametrize("seconds", [0.0, inf])
def test_a_time_that_is_none_tells_nothing(seconds: float) -> None:
    form, speeds = product(64, 48, 32), told()
    speeds.learn(form, seconds)
    assert speeds.multiple(form) == 0.0
    assert speeds.least_seconds(form) == told().least_seconds(form)


@pytest.mark.parametrize(
    "text", ["", "sum[9 over 4]", "float99 sum[9 over 4] of o0[9:1*0], with 0 dear functions"]
)
def test_a_text_of_another_version_tells_nothing(text: str) -> None:
    """A database may have rows that an earlier version wrote."""
    speeds = told((product(64, 48, 32), 1.5))
    speeds.learn(text, 1.0)
    assert speeds.multiple(text) == speeds.least_seconds(text) == 0.0


SIZES = st.integers(1, 5000)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES, st.floats(0.1, 100.0)), min_size=1, max_size=6), SIZES, SIZES)
def test_an_expectation_lies_among_those_that_it_comes_of(
    known: list[tuple[int, int, int, float]], rows: int, depth: int
) -> None:
    speeds = told(*((product(a, b, c), multiple) for a, b, c, multiple in known))
    asked = product(rows, 7, depth)
    multiples = [speeds.multiple(product(a, b, c)) for a, b, c, _ in known]
    expected = speeds.least_seconds(asked) / peak_seconds(asked)
    assert MIN_OPTIMISM * min(multiples) * (1 - 1e-9) <= expected
    assert expected <= OPTIMISM * max(multiples) * (1 + 1e-9)


@given(SIZES, SIZES, SIZES)
def test_distances(a: int, b: int, c: int) -> None:
    one, other = product(a, b, c), product(c, b, a)
    assert form_distance(one, one) == 0 <= form_distance(one, other) == form_distance(other, one)
    assert form_distance(one, one.replace("sum", "max")) == inf


def test_the_tuner_learns_from_what_it_tunes(tmp_path: Path) -> None:
    """In this run, and from the database in the next one."""
    text, types = "L[i:32, j:24](sum[r:16](mul(x0[i, r], x1[r, j])))", ((32, 16), (16, 24))
    kinds = tuple(TensorType("float32", shape) for shape in types)
    scope = intern_scope(parse(text, {x.name: x for x in input_tensors(kinds)}))
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, Machine.here(), "native", ships=False)
        form = tuner.reduction_form(scope, kinds, ())
        assert form is not None and tuner.histories.speeds.multiple(form.text) == 0.0
        tuner.best_schedule(scope, kinds, TensorType("float32", (32, 24)), 0.1)
        expected, measured = tuner.histories.expected_seconds(form), tuner.measured_schedules(scope, kinds)
        assert isclose(expected, OPTIMISM * measured[0].seconds)
        other = ReductionForm(form.text.replace("[32", "[40"), form.roles)
        assert 0 < tuner.histories.expected_seconds(other) != expected
        tuner.close()
        again = Tuner(database, Machine.here(), "native", ships=False)
        assert isclose(again.histories.expected_seconds(form), expected)


@pytest.mark.parametrize("function, counts", [("max(0, {})", True), ("exp({})", False)])
def test_a_kernel_takes_no_longer_than_others_of_its_form(
    tmp_path: Path, function: str, counts: bool
) -> None:
    """Unless it computes a dear function besides; a timing in a slow moment does not count."""
    kinds = TensorType("float32", (32, 16)), TensorType("float32", (16, 24))
    summed = "sum[r:16](mul(x0[i, r], x1[r, j]))"
    leaves = [source(f"x{k}", kind) for k, kind in enumerate(kinds)]
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, Machine.here(), "native", ships=False)
        kernels = TunedKernels(tuner, lambda least: 0.1)
        plain, other = (
            apply(eop, leaves, {"scope": f"L[i:32, j:24]({body})"})
            for body in (summed, function.format(summed))
        )
        form = tuner.reduction_form(plain.attribute("scope"), kinds, ())
        assert form is not None and kernels.seconds_of(other) == inf
        tuner.histories.speeds.learn(form.text, 1e-6)
        for node, seconds in ((plain, 1e-6), (other, 1.4e-6)):
            workload = tuner._workload(node.attribute("scope"), kinds, (False, False))
            schedule = "flat(u=1*1, p=0)"
            database.put(Measurement(workload, tuner.backend, tuner.machine.key, schedule, seconds))
        assert kernels.seconds_of(plain) == 1e-6
        assert isclose(kernels.seconds_of(other), FORM_TOLERANCE * 1e-6 if counts else 1.4e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_expression_that_no_kernel_computes_has_no_form(tmp_path: Path, dtype: str) -> None:
    """A model of such elements is priced without kernels: half precision has none."""
    types = TensorType(dtype, (8, 16)), TensorType(dtype, (16, 4))
    tensors = {x.name: x for x in input_tensors(types)}
    scope = intern_scope(parse("L[i:8, j:4](sum[r:16](mul(x0[i, r], x1[r, j])))", tensors))
    output = TensorType(dtype, (8, 4))
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, Machine.here(), "native")
        kernels = TunedKernels(tuner, lambda least: 0.1)
        leaves = [source(f"x{k}", kind) for k, kind in enumerate(types)]
        node = apply(eop, leaves, {"scope": scope})
        assert node.tensor == output and tuner.reduction_form(scope, types, ()) is None
        assert kernels.expected_seconds(node) == 0.0
        assert kernels.least_seconds(node) == MIN_TUNING_SECONDS
        assert kernels(node) is None and any(dtype in reason for reason in kernels.dropped)
        tuner.close()


def test_a_planned_kernel_is_compiled_beside_the_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where schedules of their form are known; a later run finds the objects, and compiles nothing."""
    kinds = TensorType("float32", (32, 16)), TensorType("float32", (16, 24))
    leaves = [source(f"x{k}", kind) for k, kind in enumerate(kinds)]
    summed = "sum[r:16](mul(x0[i, r], x1[r, j]))"
    plain, first, second, third = (
        apply(eop, leaves, {"scope": f"L[i:32, j:24]({text.format(summed)})"})
        for text in ("{}", "max(0, {})", "max(1, {})", "max(2, {})")
    )
    n = polynomial(Symbol("N", 1))
    size_open = apply(eop, [source("x0", TensorType("float32", (n,)))], {"scope": "L[i:N](x0[i])"})
    compiled: list[int] = []
    compile_now = ObjectCompiler._compile_now

    def note(compiler: ObjectCompiler, sources: Sequence[object], patience: float) -> list[bytes | str]:
        compiled.append(len(sources))
        return compile_now(compiler, sources, patience)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectCompiler, "_compile_now", note)
    with Database(tmp_path / "db.sqlite") as database:
        tuner = Tuner(database, Machine.here(2), "native", ships=False)
        seconds = [2.0]  # enough for a busy machine, too
        kernels = TunedKernels(tuner, lambda least: seconds[0])
        assert kernels(plain) is not None and sum(compiled) >= 1
        compiled.clear()
        seconds[0] = 0.1
        kernels.planned = [plain, first, size_open, second, third]
        made = [kernels(node) for node in (first, second)]
        assert [count for count in compiled if count] == [2]
        assert kernels.link([kernel for kernel in made if kernel is not None]).exists()
        assert [count for count in compiled if count] == [2]
        tuner.close()
        compiled.clear()
        again = TunedKernels(Tuner(database, Machine.here(2), "native", ships=False), lambda least: 0.3)
        made = [again(node) for node in (first, second)]
        assert again.link([kernel for kernel in made if kernel is not None]).exists() and not sum(compiled)
        again.tuner.close()
