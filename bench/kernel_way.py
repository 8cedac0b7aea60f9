"""One kernel on its way: prepared, scheduled, compiled, run between guard pages, compared with the
evaluator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from halide import HalideError
from kernel_scopes import Scopes

from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope, Tensor, call, compute, fold, total, where
from tensaurus.expr.ir.walk import replace_tensors, scopes
from tensaurus.expr.ir.walk import tensors as free
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.finders.bilinear import best_algorithm
from tensaurus.finders.bilinear.fast_convolution import Convolution, fast_scope
from tensaurus.finders.bilinear.tiling import ConvolutionAxis
from tensaurus.finders.fuse.blocked_expression import block_kernel
from tensaurus.finders.fuse.blocked_layouts import is_blockable
from tensaurus.finders.fuse.inline_stages import inline_stages
from tensaurus.graph.ir.tensor_data import numpy_dtype
from tensaurus.kernels.halide.compile import compile_object, input_tensors, jit
from tensaurus.kernels.halide.lowering_errors import LoweringError
from tensaurus.kernels.halide.pipeline import schedulable_stages
from tensaurus.kernels.library.loaded_object import ObjectLoader
from tensaurus.kernels.stages.bilinear_chain import has_combinations
from tensaurus.kernels.stages.sketch import Schedule, format_schedule
from tensaurus.kernels.tune.chain_schedules import rank_chain_schedules
from tensaurus.kernels.tune.guard_pages import guarded_array
from tensaurus.kernels.tune.schedule_space import candidate_bands, rank_sketches
from tensaurus.kernels.tune.target_core import TargetCore
from tensaurus.ops import TensorType, registry
from tensaurus.ops.examples import parse_example

__all__ = [
    "Case",
    "Finding",
    "findings",
    "of_blocks",
    "of_chain",
    "of_examples",
    "of_nest",
    "of_number",
    "schedules",
    "wrong",
]

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}  # of an element and of the largest; inputs are of size 1
CORES = (
    (TargetCore(512, 32, 1), "native"),
    (TargetCore(256, 16, 2), "x86-64-v3"),
    (TargetCore(512, 32, 2), "native"),
    (TargetCore(256, 16, 1), "x86-64-v3"),
)


@dataclass(frozen=True)
class Finding:
    """`verdict` is unlowered, refused (by Halide), wrong, crash, hang or memory."""

    verdict: str
    schedule: str
    cpu: str
    detail: str


@dataclass
class Case:
    """An expression over x0, x1, ... with elements for them."""

    name: str
    scope: Scope
    types: tuple[TensorType, ...]
    arrays: list[np.ndarray[Any, Any]]

    @cached_property
    def dtype(self) -> str:
        return dtype_of(self.scope)

    def evaluated(self, rounding: float = 0.0) -> np.ndarray[Any, Any]:
        """What the evaluator makes of the elements, moved by a rounding of them."""
        field, rng = Reals(), np.random.default_rng(0)
        values = {}
        for x, array in zip(input_tensors(self.types), self.arrays, strict=True):
            lifted = np.asarray(field.lift(array))
            if rounding and lifted.dtype.kind == "f":
                lifted = lifted * (1 + rounding * rng.uniform(-1, 1, lifted.shape))
            values[x] = lifted
        with np.errstate(all="ignore"):
            return np.asarray(interpret(self.scope, values, field))

    @cached_property
    def expected(self) -> np.ndarray[Any, Any]:
        return self.evaluated()

    def differs(self, found: np.ndarray[Any, Any]) -> str:
        """In what elements the result is another, "" for none."""
        wanted = self.expected
        if self.dtype not in TOLERANCE:
            bad = wanted.astype(found.dtype) != found
        else:
            # float32 on the way, also that of literals alone: the evaluator has them exact
            inner = {dtype_of(scope) for scope in scopes(self.scope)} | {kind.dtype for kind in self.types}
            text = show_scope(self.scope)
            single = "float32" in inner or "to_float32" in text or "to_float64" in text
            tolerance = TOLERANCE["float32" if single else "float64"]
            bad = ~close(wanted, found, tolerance)
            if bad.any():  # what roundings on the way may do
                with np.errstate(all="ignore"):
                    spread = np.abs(self.evaluated(tolerance / 10) - wanted)
                    bad &= ~(np.abs(found - wanted) <= 64 * np.nan_to_num(spread, nan=np.inf))
        if not bad.any():
            return ""
        place = tuple(int(n) for n in np.argwhere(bad)[0])
        return f"{int(bad.sum())} of {bad.size}, {place}: {found[place]}, not {wanted[place]}"


def close(
    wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any], tolerance: float
) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        finite = np.isfinite(wanted)
        largest = float(np.max(np.abs(wanted[finite]), initial=0.0))
        if found.dtype == np.float32:  # its own overflow
            wanted = wanted.astype(np.float32).astype(np.float64)
        near = np.abs(wanted - found) <= tolerance * (np.abs(wanted) + min(largest, 1e30))
        return near | (wanted == found) | np.isnan(wanted) & np.isnan(found)


def elements(kind: TensorType, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Quarters and small integers: their sums and products are exact, in whatever order."""
    shape = [int(n) for n in kind.shape]  # type: ignore[call-overload]
    if kind.dtype.startswith("float"):
        return (rng.integers(-8, 9, shape) / 4).astype(kind.dtype)
    if kind.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0 if kind.dtype.startswith("u") else -4, 12, shape).astype(numpy_dtype(kind.dtype))


def of_number(seed: int, number: int) -> Case:
    """The random expression of a seed and its number."""
    drawn = Scopes(f"{seed} {number}")
    scope = intern_scope(drawn.whole())
    types = tuple(TensorType(x.dtype, x.shape) for x in drawn.tensors)
    rng = np.random.default_rng((seed, number))
    arrays = [elements(kind, rng) for kind in types]
    for x, array in zip(drawn.tensors, arrays, strict=True):
        if x in drawn.places:
            np.clip(array, 0, drawn.places[x], out=array)
    return Case(f"{seed} {number}", scope, types, arrays)


def of_examples(strange: bool = False) -> Iterator[Case]:
    """Every output of every example of every operator; `strange`: with infinities and NaN among the
    floats.
    """
    for name, op in sorted(registry.items()):
        for text in op.examples:
            example = parse_example(text)
            values = example.values(np.random.default_rng(crc32(f"{name} {text}".encode())))
            own = op.tensors(example.types)
            types = tuple(kind for kind in example.types if kind is not None)
            arrays = [np.asarray(value) for value in values if value is not None]
            if strange:
                arrays = [_strange(array) for array in arrays]
            named = dict(zip((x for x in own if x is not None), input_tensors(types), strict=True))
            for place, scope in enumerate(
                op.scopes(example.types, op.canonical(example.types, example.attrs))
            ):
                made = intern_scope(replace_tensors(scope, named))  # type: ignore[arg-type]
                yield Case(f"{op.name} {text} [{place}]", made, types, arrays)


def of_blocks() -> Iterator[Case]:
    """The examples with their first input, their result or both in blocks (`fuse.blocked_layouts`)."""
    for case in of_examples():
        yield from _in_blocks(case)


def _in_blocks(case: Case) -> Iterator[Case]:
    whole = TensorType(case.dtype, case.scope.shape)
    for width, inputs, output in product((2, 3), ((), (0,)), (False, True)):
        wanted = [*case.types[: len(inputs)], *([whole] if output else [])]
        if not wanted or len(wanted) < len(inputs) + output:
            continue
        if not all(is_blockable(kind, width) for kind in wanted):
            continue
        scope = block_kernel(case.scope, {f"x{k}" for k in inputs}, output, width)
        if scope is not None:
            types, arrays = list(case.types), list(case.arrays)
            for k in inputs:
                n, channels, *others = arrays[k].shape
                parts = arrays[k].reshape(n, channels // width, width, *others)
                arrays[k] = np.ascontiguousarray(np.moveaxis(parts, 2, -1))
                types[k] = TensorType(types[k].dtype, arrays[k].shape)
            sides = ["input"] * bool(inputs) + ["output"] * output
            name = f"{case.name}, {' and '.join(sides)} in blocks of {width}"
            yield Case(name, scope, tuple(types), arrays)


def _strange(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind != "f":
        return array
    found = array.copy()
    flat = found.reshape(-1)
    for place, value in zip(range(0, flat.size, 2), (np.nan, np.inf, -np.inf, -0.0, 0.0), strict=False):
        flat[place] = value
    return found


def of_chain(seed: int, number: int) -> Case:
    """A random convolution by a random fast algorithm, perhaps with more that reads it element by element."""
    rng = Random(f"chain {seed} {number}")
    rank = rng.choice((1, 2, 2, 2, 3))
    windows, algorithms = [], []
    for _ in range(rank):
        taps = rng.choice((1, 2, 3, 3, 3, 5))
        stride, dilation = rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
        pad = rng.randint(0, taps)
        size = rng.randint(dilation * (taps - 1) + 1, {1: 80, 2: 30, 3: 9}[rank])
        outputs = (size + pad + rng.randint(0, taps) - dilation * (taps - 1) - 1) // stride + 1
        windows.append(ConvolutionAxis(size, taps, outputs, stride, dilation, pad))
        own = windows[-1]
        fast_too = own.taps_per_residue > 1 and rng.random() < 0.85
        tile = rng.randint(2, max(2, min(6, 9 - own.taps_per_residue)))
        algorithms.append(best_algorithm(tile, own.taps, own.step) if fast_too else None)
    channels = rng.choice((3, 4, 7, 8, 12, 16, 21, 22, 24, 32))
    filters = rng.choice((4, 8, 12, 20, 24, 36, 48, 68, 100))
    of = Convolution(rng.choice((1, 1, 2, 3)), channels, filters, 1, tuple(windows), rng.random() < 0.5)
    scope = fast_scope(of, algorithms)
    extra = Tensor(f"x{2 + of.has_bias}", scope.shape)
    after = rng.choice(("nothing", "max", "add", "both", "swish"))

    def element(*place: Any) -> Any:
        value: Any = scope[place]
        if after == "swish":
            return value * call("tanh", value)
        if after in ("add", "both"):
            value = value + extra[place]
        return call("max", value, 0) if after in ("max", "both") else value

    whole = intern_scope(inline_stages(compute(scope.shape, element)) if after != "nothing" else scope)
    if rng.random() < 0.3:
        whole = _after_what_it_reads(whole, of.x, rng)
    return _drawn(f"chain {seed} {number}", whole, (seed, number))


def _after_what_it_reads(scope: Scope, x: Tensor, rng: Random) -> Scope:
    """The scope of an input that is computed: of two, perhaps of another size, side by side or added."""
    other, halved, beside = Tensor("x4", x.shape), rng.random() < 0.5, rng.random() < 0.3
    first = rng.randint(1, int(x.shape[1]))  # type: ignore[call-overload]

    def element(n: Any, c: Any, *place: Any) -> Any:
        there = other[n, c, *(i // 2 if halved else i for i in place)]
        mixed = call("max", x[n, c, *place] * there, 0)
        return where(first - 1 - c, x[n, c, *place], there) if beside else mixed

    return intern_scope(inline_stages(replace_tensors(scope, {x: compute(x.shape, element)})))


def _drawn(name: str, scope: Scope, seed: tuple[int, int]) -> Case:
    """The scope, its tensors named x0, x1, ... in the order of their names, with random elements for them."""
    found = sorted(free(scope), key=lambda x: x.name)
    types = tuple(TensorType(x.dtype, x.shape) for x in found)
    names = {x: Tensor(f"x{k}", x.shape) for k, x in enumerate(found)}
    draw = np.random.default_rng(seed)
    arrays = [elements(kind, draw) for kind in types]
    return Case(name, intern_scope(replace_tensors(scope, names)), types, arrays)


def of_nest(seed: int, number: int) -> Case:
    """Products one in the other's loops: a window over what a product makes slice by slice, or a band, plain
    or dilated, perhaps with the softmax of its rows and a second band; or a product of what is joined and
    computed of several tensors.
    """
    rng = Random(f"nest {seed} {number}")
    kind = rng.random()
    scope = _window_of_product(rng) if kind < 0.4 else _bands(rng) if kind < 0.8 else _product_of_joined(rng)
    return _drawn(f"nest {seed} {number}", intern_scope(inline_stages(scope)), (seed, number))


def _window_of_product(rng: Random) -> Scope:
    batch, deep, channels = rng.choice((1, 1, 2)), rng.choice((1, 3, 8)), rng.choice((2, 5, 8, 16, 20, 33))
    sizes = [rng.choice((1, 4, 7, 14, 16, 17)) for _ in range(2)]
    taps, stride, pad = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2)), rng.randint(0, 2)
    x, w = Tensor("x0", (batch, deep, *sizes)), Tensor("x1", (channels, deep))
    k, b = Tensor("x2", (channels, taps, taps)), Tensor("x3", (channels,))
    inner = compute(
        (batch, channels, *sizes),
        lambda n, c, i, j: call("max", total((deep,), lambda d: x[n, d, i, j] * w[c, d]) + b[c], 0),
    )
    places = [max(1, (n + 2 * pad - taps) // stride + 1) for n in sizes]

    def element(n: Any, c: Any, i: Any, j: Any) -> Any:
        def term(p: Any, q: Any) -> Any:
            return inner.padded(0)[n, c, stride * i + p - pad, stride * j + q - pad] * k[c, p, q]

        return total((taps, taps), term) + b[c]

    return compute((batch, channels, *places), element)


def _product_of_joined(rng: Random) -> Scope:
    """Of some channels of each of a few tensors, with so few or many results that copies pay or do not."""
    channels = [rng.choice((1, 3, 8, 16)) for _ in range(rng.choice((1, 2, 3)))]
    results, places = rng.choice((3, 4, 8, 16, 33, 48)), rng.choice((1, 4, 7, 16, 33, 64))
    parts = [Tensor(f"x{k}", (n, places)) for k, n in enumerate(channels)]
    w, s = Tensor(f"x{len(parts)}", (results, sum(channels))), Tensor(f"x{len(parts) + 1}", (sum(channels),))
    scaled, across = rng.random() < 0.5, rng.random() < 0.3

    def element(c: Any, i: Any) -> Any:
        first = sum(channels) - channels[-1]
        found: Any = parts[-1][c - first, i]
        for part, size in reversed([*zip(parts[:-1], channels[:-1], strict=True)]):
            inside = first - 1 - c
            first -= size
            found = where(inside, part[c - first, i], found)
        return call("max", found * s[c] if scaled else found, 0)

    joined = compute((sum(channels), places), element)

    def one(f: Any, i: Any) -> Any:
        return total((sum(channels),), lambda c: w[f, c] * joined[c, i])

    return compute((places, results), lambda i, f: one(f, i)) if across else compute((results, places), one)


def _bands(rng: Random) -> Scope:
    heads, rows_, deep = rng.choice((1, 2)), rng.choice((4, 8, 12, 16, 20, 32)), rng.choice((2, 8, 17))
    width, step, shift = rng.choice((1, 3, 7, 17, 33)), rng.choice((1, 1, 2, 4)), rng.randint(-1, 20)
    q, k, v = (Tensor(f"x{n}", (heads, rows_, deep)) for n in range(3))

    def score(h: Any, i: Any, j: Any) -> Any:
        return total((deep,), lambda d: q[h, i, d] * k.padded(0)[h, i + step * j - shift, d])

    scores = compute((heads, rows_, width), score)
    if rng.random() < 0.5:
        return scores
    most = compute((heads, rows_), lambda h, i: fold("max", (width,), lambda j: scores[h, i, j]))
    powers = compute(
        scores.shape, lambda h, i, j: call("exp", call("max", scores[h, i, j] - most[h, i], -4))
    )
    sums = compute((heads, rows_), lambda h, i: total((width,), lambda j: powers[h, i, j]))

    def mean(h: Any, i: Any, e: Any) -> Any:
        def term(j: Any) -> Any:
            return powers[h, i, j] / sums[h, i] * v.padded(0)[h, i + step * j - shift, e]

        return total((width,), term)

    return compute((heads, rows_, deep), mean)


def schedules(case: Case, core: TargetCore, rng: Random, count: int) -> list[Schedule]:
    """The first that is proposed, the last, and random ones, in this order, and some of each band."""
    stages, _ = schedulable_stages(case.scope, input_tensors(case.types))
    if has_combinations(stages):
        chained: list[Schedule] = [
            (*packed, sketch)
            for packed, pool, _ in rank_chain_schedules(
                case.scope, case.types, [k > 0 for k in range(9)], core
            )
            for sketch in (pool[0], pool[-1], *(rng.choice(pool) for _ in range(count)))
        ]
        if not chained:
            raise LoweringError("a chain without a schedule")
        return chained
    found: list[Schedule] = []
    for band in (None, *candidate_bands(case.scope)):
        parts = () if band is None else (band,)
        stages, _ = schedulable_stages(case.scope, input_tensors(case.types), parts)
        pools = rank_sketches(stages, core)
        found += [(*parts, *(pool[0] for pool in pools)), (*parts, *(pool[-1] for pool in pools))]
        found += [(*parts, *(rng.choice(pool) for pool in pools)) for _ in range(count)]
    return list(dict.fromkeys(found))


def wrong(case: Case, schedule: Schedule, cpu: str, checks: bool = False, loaded: bool = False) -> str:
    """What is wrong with what the kernel computes, against either end of its pages, "" for nothing.

    With `loaded` the kernel is compiled to an object, which is linked and loaded. Raises LoweringError, and
    HalideError where Halide's own checks fail.
    """
    if loaded:
        output = TensorType(case.dtype, case.scope.shape)
        code = compile_object(case.scope, case.types, output, schedule, cpu)
        bound = loader(cpu).load(code, case.scope, case.types, output, schedule)
    else:
        bound = jit(case.scope, case.types, schedule, cpu, checks)
    for last in (True, False):
        arrays = []
        for array in case.arrays:
            arrays.append(guarded_array(array.shape, array.dtype, last))
            arrays[-1][...] = array
        result = guarded_array([int(n) for n in case.scope.shape], numpy_dtype(case.dtype), last)  # type: ignore[call-overload]
        result.reshape(-1).view(np.uint8)[...] = 1 if case.dtype == "bool" else 0xFF
        bound(arrays, result)()
        if found := case.differs(result):
            return found
        if any(a.tobytes() != b.tobytes() for a, b in zip(arrays, case.arrays, strict=True)):
            return "an input was written to"
    return ""


def findings(case: Case, tries: Sequence[tuple[int, int, bool]], rng: Random) -> Iterator[Finding]:
    """Of (which of `CORES`, how many random schedules, Halide's checks on): one is instead of the other
    two. A kernel with checks is compiled to an object as well, which is loaded and run.
    """
    for place, count, checks in tries:
        core, cpu = CORES[place]
        try:
            proposed = schedules(case, core, rng, count)
        except LoweringError as error:
            yield Finding("unlowered", "", cpu, str(error))
            return
        for schedule in [rng.choice(proposed)] if count == 1 else proposed:
            try:
                found = wrong(case, schedule, cpu)
            except LoweringError as error:
                yield Finding("refused", format_schedule(schedule), cpu, str(error))
                continue
            if found:
                yield Finding("wrong", format_schedule(schedule), cpu, found)
            elif checks:
                yield from _checked(case, schedule, cpu)
                if found := wrong(case, schedule, cpu, loaded=True):
                    yield Finding("wrong", format_schedule(schedule), cpu, f"as a loaded object: {found}")


@cache
def loader(cpu: str) -> ObjectLoader:
    """Loads objects for a processor into this process."""
    return ObjectLoader(cpu)


def _checked(case: Case, schedule: Schedule, cpu: str) -> Iterator[Finding]:
    """With Halide's checks, whose bounds of what is read need not be tight."""
    try:
        found = wrong(case, schedule, cpu, checks=True)
    except HalideError as error:
        found = str(error).strip().splitlines()[0]
        if found.startswith("Error: Input buffer"):
            yield Finding("inexact", format_schedule(schedule), cpu, found)
            return
    if found:
        yield Finding("wrong", format_schedule(schedule), cpu, f"with checks: {found}")
