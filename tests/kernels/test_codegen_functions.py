"""Scalar functions as Halide expressions: each of the algebra, of each element type, over the whole range."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from math import inf, nan
from pathlib import Path

import halide as hl
import numpy as np
import pytest

from tensaurus.expr.evaluate.field_protocol import Array, Reals
from tensaurus.expr.ir.integer_types import integer_limits, is_integer
from tensaurus.expr.ir.scalar_functions import FUNCTIONS
from tensaurus.kernels.math.halide_functions import (
    MAX_ERROR_ULPS,
    apply_function,
    halide_type,
    is_supported,
    literal_constant,
)

FLOATS = ("float32", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
TYPES = (*FLOATS, *INTEGERS, "bool")
CASES = [(fn, dtype) for fn in FUNCTIONS for dtype in TYPES if is_supported(fn, dtype)]
BUFFERS = {"bool": np.uint8, "uint64": np.int64}
AVX2 = hl.Target("x86-64-linux-avx-avx2-f16c-fma-sse41-no_runtime-no_asserts-no_bounds_query")

Element = Callable[..., hl.Expr]


def stored(kind: hl.Type) -> hl.Type:
    """Bools are bytes; Halide's Python buffers lack uint64."""
    return hl.UInt(8) if kind.is_bool() else hl.Int(64) if kind == hl.UInt(64) else kind


def pipeline(
    elements: Sequence[Element], kinds: Sequence[hl.Type]
) -> tuple[hl.Pipeline, list[hl.ImageParam]]:
    """One vectorised output for each function of the elements of all inputs, as they are stored."""
    x = hl.Var("x")
    params = [hl.ImageParam(stored(k), 1, f"in{n}") for n, k in enumerate(kinds)]
    read = [
        p[x] != hl.u8(0) if k.is_bool() else hl.reinterpret(k, p[x])
        for p, k in zip(params, kinds, strict=True)
    ]
    funcs = []
    for element in elements:
        value = element(*read)
        func, kind = hl.Func(), stored(value.type())
        func[x] = hl.cast(kind, value) if value.type().is_bool() else hl.reinterpret(kind, value)
        funcs.append(func.vectorize(x, 16, hl.TailStrategy.ShiftInwards))
    return hl.Pipeline(funcs), params


def run(elements: Sequence[Element], inputs: Sequence[Array], outputs: Sequence[str]) -> list[Array]:
    kinds = [halide_type(str(a.dtype)) for a in inputs]
    compiled, params = pipeline(elements, kinds)
    results = [np.empty(inputs[0].shape, o) for o in outputs]
    callable_ = compiled.compile_to_callable(params, hl.get_host_target())
    callable_(*(hl.Buffer(a.view(BUFFERS.get(str(a.dtype), a.dtype))) for a in (*inputs, *results)))
    return results


def one(element: Element, *inputs: Array, dtype: str = "") -> Array:
    return run([element], inputs, [dtype or str(inputs[0].dtype)])[0]


def quiet(data: Array) -> Array:
    """No signalling NaN: even to the power of 0 it is NaN."""
    return np.where(np.isnan(data), data.dtype.type(nan), data)


def neighbours(dtype: str) -> Array:
    """Where polynomials meet, results overflow or are subnormal, and what special values there are."""
    info = np.finfo(dtype)
    spots = [
        0, info.smallest_subnormal, info.tiny, info.max, 1e-4, 2**-12, 0.25, np.pi / 8, 2**0.5 - 1, 0.5,
        0.5**0.5, np.pi / 4, 1, 2**0.5, np.pi / 2, 2, 2**0.5 + 1, np.e, 3, np.pi, 3.95, 6, 9, 10, 87.33655,
        88.72284, 103.97208, 104, 708.39, 709.78, 745.13, 2.0**22, 2.0**23, 2.0**24, 2.0**31, 2.0**53,
        2.0**63, 2.0**64,
    ]  # fmt: skip
    bits = np.array(spots, dtype).view(f"u{info.bits // 8}")[:, None]
    around = (bits + np.arange(-4, 5).astype(bits.dtype)).ravel()
    sign = np.array(1 << (info.bits - 1), bits.dtype)
    return quiet(np.concatenate([around, around ^ sign]).view(dtype))


def values(dtype: str, count: int, seed: int = 0) -> Array:
    """Of floats, numbers of every exponent and of moderate size; of integers, of every size."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    kind = np.dtype(dtype)
    width = 8 * kind.itemsize
    if dtype in FLOATS:
        # one bit pattern from each of as many equal parts of all of them
        step = 2**width // count
        even = np.arange(count, dtype=np.uint64) * np.uint64(step)
        patterns = even + rng.integers(0, step, count, dtype=np.uint64)
        spread = rng.permutation(patterns.astype(f"u{kind.itemsize}").view(dtype))
        moderate = rng.standard_normal(count // 2) * rng.choice([0.01, 1, 10, 100], count // 2)
        return np.concatenate([neighbours(dtype), quiet(spread), moderate.astype(dtype)])
    low, high = integer_limits(dtype)
    edges = [v for v in (low, low + 1, -2, -1, 0, 1, 2, 3, 7, 10, high - 1, high) if low <= v <= high]
    random = rng.integers(0, 2**width - 1, count, dtype=np.uint64, endpoint=True)
    shifted = random >> rng.integers(0, width, count).astype(np.uint64)
    return np.concatenate([np.array(edges, dtype), shifted.astype(f"u{kind.itemsize}").view(dtype)])


@cache
def arguments(dtype: str, arity: int) -> tuple[Array, ...]:
    if arity == 1:
        return (values(dtype, 2**20 if dtype == "float32" else 2**15),)
    if dtype in ("int8", "uint8"):
        low, high = integer_limits(dtype)
        every = np.arange(low, high + 1).astype(dtype)
        pairs = np.meshgrid(every, every)
    else:
        some = neighbours(dtype)[::3] if dtype in FLOATS else values(dtype, 20)
        grid = np.meshgrid(some, some)
        pairs = [np.concatenate([p.ravel(), values(dtype, 2**15, seed)]) for seed, p in enumerate(grid)]
        small = np.random.default_rng(2).integers(-9, 10, len(pairs[0]))
        # some exponents that are small and whole, and some equal arguments
        if dtype != "bool":
            chosen = np.random.default_rng(3).integers(0, 8, len(small))
            pairs[1] = np.where(chosen == 0, small.astype(dtype), np.where(chosen == 1, pairs[0], pairs[1]))
    pairs = [p.ravel() for p in pairs]
    return tuple(pairs) if arity == 2 else (values("bool", len(pairs[0]))[: len(pairs[0])], *pairs)


def result_type(fn: str, dtype: str) -> str:
    return "bool" if FUNCTIONS[fn].result == "bool" else dtype


@cache
def computed(dtype: str, arity: int) -> dict[str, Array]:
    """All functions of one type and arity, compiled at once."""
    names = [fn for fn, d in CASES if d == dtype and FUNCTIONS[fn].arity == arity]
    elements = [lambda *x, fn=fn: apply_function(fn, x, dtype) for fn in names]
    found = run(elements, arguments(dtype, arity), [result_type(fn, dtype) for fn in names])
    return dict(zip(names, found, strict=True))


def exact_erf(x: Array) -> Array:
    """2 / sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!, whose terms are all of one sign."""
    clipped = np.clip(x, -6.5, 6.5)
    term = total = clipped
    for n in range(1, 220):
        term = term * (2 * clipped * clipped / (2 * n + 1))
        total = total + term
    return 2 / np.sqrt(4 * np.arctan(np.longdouble(1))) * np.exp(-clipped * clipped) * total


def exact(fn: str, args: Sequence[Array]) -> Array:
    """A transcendental function in a wider type."""
    with np.errstate(all="ignore"):
        if args[0].dtype == np.float64:
            wide = [a.astype(np.longdouble) for a in args]
            return exact_erf(wide[0]) if fn == "erf" else FUNCTIONS[fn].run(*wide)
        return FUNCTIONS[fn].run(*(a.astype(np.float64) for a in args))


def errors(found: Array, right: Array) -> Array:
    """In units in the last place of what is right; 0 where both are NaN, or infinities of one sign."""
    with np.errstate(all="ignore"):
        rounded = right.astype(found.dtype)
        info = np.finfo(found.dtype)
        top = np.ldexp(right.dtype.type(1), info.maxexp)  # where infinity stands
        unit = np.spacing(np.minimum(np.abs(rounded), info.max)).astype(right.dtype)
        clipped = [np.clip(v.astype(right.dtype), -top, top) for v in (found, right)]
        difference = np.abs(clipped[0] - clipped[1]) / unit
    both = np.isnan(found) & np.isnan(right)
    return np.where(both, 0, np.where(np.isnan(found) | np.isnan(right), inf, difference))


def of_integers(fn: str, args: Sequence[Array], dtype: str) -> Array:
    """By the evaluator, which carries integers as int64."""
    right = Reals().call(fn, [a if a.dtype == bool else a.astype(np.int64) for a in args], dtype)
    return right if right.dtype == bool else right.astype(dtype)


def whole(data: Array, dtype: str) -> tuple[Array, Array]:
    """Which float64 are integers of the type when they are truncated, and these."""
    low, high = integer_limits(dtype)
    cut = np.trunc(data)
    fits = (cut >= low) & (cut < float(high + 1))
    return fits, np.where(fits, cut, 0).astype(dtype)


def same(found: Array, right: Array, zeros: bool = True) -> Array:
    """Where they are equal, NaN to NaN and, of `zeros`, -0.0 to -0.0."""
    equal = (found == right) | ((found != found) & (right != right))
    return equal & (np.signbit(found) == np.signbit(right)) | (found != found) if zeros else equal


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("fn,dtype", CASES)
def test_functions_are_the_algebras(fn: str, dtype: str) -> None:
    args = arguments(dtype, FUNCTIONS[fn].arity)
    found = computed(dtype, FUNCTIONS[fn].arity)[fn]
    if fn in MAX_ERROR_ULPS.get(dtype, ()):
        right = exact(fn, args)
        wrong = errors(found, right)
        worst = int(wrong.argmax())
        assert wrong[worst] <= MAX_ERROR_ULPS[dtype][fn], [a[worst] for a in args]
        signs = np.isnan(found) | (np.signbit(found) == np.signbit(right))
        assert signs.all(), [a[~signs][:3] for a in args]
        return
    if is_integer(dtype):
        if fn == "pow":
            with np.errstate(all="ignore"):
                power = np.power(args[0].astype(np.float64), args[1].astype(np.float64))
            fits, right = whole(power, dtype)
            # of numbers beyond 2^53 float64 has an ulp's error to show
            good = ~fits | (np.abs(found.astype(np.longdouble) - right) <= np.abs(power) * 2.0**-52)
        else:
            right = of_integers(fn, args, dtype)
            good = found == right
    else:
        with np.errstate(all="ignore"):
            right = FUNCTIONS[fn].run(*args)
        good = found == right if right.dtype == bool else same(found, right, fn not in ("max", "min"))
    assert good.all(), ([a[~good][:3] for a in args], found[~good][:3], right[~good][:3])


def test_every_function_has_a_kernel_where_the_operators_have_it() -> None:
    lacking = {
        "float32": {"and", "or", "xor", "not"},
        "float64": {"and", "or", "xor", "not", "mod", "fmod"},
        "bool": set(FUNCTIONS) - {"and", "or", "xor", "not", "eq", "where", "max", "min"},
        **dict.fromkeys(INTEGERS, {fn for fn, f in FUNCTIONS.items() if f.result == "float"}
                        | {"and", "or", "xor", "not", "floor", "ceil", "round", "isnan", "isinf"}),
    }  # fmt: skip
    for dtype in TYPES:
        assert {fn for fn in FUNCTIONS if not is_supported(fn, dtype)} == lacking[dtype], dtype
    assert not is_supported("add", "float16") and not is_supported("to_float16", "float32")
    with pytest.raises(ValueError, match="fmod of float64"):
        apply_function("fmod", [1.0, 2.0], "float64")


@pytest.mark.parametrize("dtype", TYPES)
def test_conversions(dtype: str) -> None:
    (x,) = (values("bool", 100),) if dtype == "bool" else (values(dtype, 2**15),)
    found = run([lambda v, to=to: apply_function(f"to_{to}", [v], dtype) for to in TYPES], [x], TYPES)
    for to, result in zip(TYPES, found, strict=True):
        with np.errstate(all="ignore"):
            if dtype in FLOATS and is_integer(to):
                fits, right = whole(x.astype(np.float64), to)
                assert fits.sum() > 1000 and (result == right)[fits].all(), to
            else:
                right = x.astype(to)
                assert same(result, right, to in FLOATS).all(), (to, x[~same(result, right)][:3])


def test_what_no_integer_stands_for() -> None:
    x = np.array([nan, inf, -inf, 3e38, 300, -129, -1, 70000] * 2, np.float32)
    least = [-(2**31)] * 4 + [300, -129, -1, 70000]
    assert one(lambda v: apply_function("to_int32", [v], "float32"), x, dtype="int32").tolist() == least * 2
    wide = one(lambda v: apply_function("to_int64", [v], "float32"), x, dtype="int64")
    assert wide.tolist() == ([-(2**63)] * 4 + least[4:]) * 2
    for to in ("int8", "uint8", "int16", "uint16"):
        found = one(lambda v, to=to: apply_function(f"to_{to}", [v], "float32"), x, dtype=to)
        assert (found == np.array(least * 2).astype(to)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_literals_are_constants(dtype: str) -> None:
    """Whatever form a literal has, it is the function of the same number as an expression."""
    x = values(dtype, 2**10)
    floats = dtype in FLOATS
    literals = [0, 3, *([] if dtype[0] == "u" else [-1]), *([0.5, inf, nan] if floats else [])]
    names = ("max", "min", "div", "pow") if floats else ("max", "div", "fmod")
    # a power of a literal has no form of its own
    cases = [c for c in itertools.product(names, literals, (False, True)) if c[0] != "pow" or not c[2]]

    def element(fn: str, value: float, left: bool) -> Element:
        return lambda v: apply_function(fn, [value, v] if left else [v, value], dtype)

    found = run([element(*case) for case in cases], [x], [dtype] * len(cases))
    for (fn, value, left), result in zip(cases, found, strict=True):
        other = np.full_like(x, value)
        pair = (other, x) if left else (x, other)
        with np.errstate(all="ignore"):
            if fn == "pow":
                good = errors(result, exact(fn, pair)) <= 1.5
            elif floats:
                good = same(result, FUNCTIONS[fn].run(*pair), fn == "div")
            else:
                good = result == of_integers(fn, pair, dtype)
        assert good.all(), (fn, value, left, x[~good][:3])


def test_constants() -> None:
    x = np.zeros(16, np.float64)
    third = one(lambda v: v + literal_constant(Fraction(1, 3), "float64"), x)
    assert (third == 1 / 3).all()
    for value, dtype, right in [
        (Fraction(1, 3), "float32", np.float32(1 / 3)), (inf, "float32", inf), (2**-149, "float32", 2**-149),
        (inf, "int32", 2**31 - 1), (-inf, "int8", -128), (-inf, "uint8", 0), (2**64 - 1, "uint64", 2**64 - 1),
        (-(2**63), "int64", -(2**63)), (True, "bool", True), (False, "bool", False), (3, "float64", 3.0),
        (inf, "uint64", 2**64 - 1), (-1, "int16", -1),
    ]:  # fmt: skip
        literal = literal_constant(value, dtype)
        found = one(lambda v, c=literal: hl.select(v == v, c, c), x, dtype=dtype)
        assert found.tolist() == [right] * 16, (value, dtype)
    for value in (Fraction(1, 2), 0.5, nan):
        with pytest.raises(ValueError, match="is no int32"):
            literal_constant(value, "int32")


def test_nothing_is_reassociated_or_assumed() -> None:
    def fn(name: str) -> Element:
        return lambda *args: apply_function(name, args, "float32")

    add, sub, mul, div = map(fn, ("add", "sub", "mul", "div"))
    cases: list[tuple[Element, Callable[..., Array]]] = [
        (lambda x, y: sub(add(x, 1e8), 1e8), lambda x, y: (x + np.float32(1e8)) - np.float32(1e8)),
        (lambda x, y: mul(x, 0), lambda x, y: x * np.float32(0)),
        (lambda x, y: sub(x, x), lambda x, y: x - x),
        (lambda x, y: div(x, 3), lambda x, y: x / np.float32(3)),
        (lambda x, y: add(mul(x, y), x), lambda x, y: x * y + x),
        (lambda x, y: div(mul(x, y), y), lambda x, y: x * y / y),
        (lambda x, y: add(x, 0), lambda x, y: x + np.float32(0)),
        (lambda x, y: fn("max")(mul(x, y), 0), lambda x, y: np.maximum(x * y, np.float32(0))),
        (lambda x, y: fn("max")(mul(x, y), add(x, y)), lambda x, y: np.maximum(x * y, x + y)),
        (lambda x, y: fn("where")(fn("isnan")(mul(x, y)), x, mul(x, y)),
         lambda x, y: np.where(np.isnan(x * y), x, x * y)),
        (lambda x, y: fn("where")(fn("isinf")(mul(x, y)), 1, 2),
         lambda x, y: np.where(np.isinf(x * y), 1, 2).astype(np.float32)),
    ]  # fmt: skip
    x, y = arguments("float32", 2)
    found = run([ours for ours, _ in cases], [x, y], ["float32"] * len(cases))
    with np.errstate(all="ignore"):
        for number, ((_, theirs), result) in enumerate(zip(cases, found, strict=True)):
            assert same(result, theirs(x, y), number not in (7, 8)).all(), number


def test_transcendental_functions_are_the_same_wherever_they_are_called() -> None:
    names = [fn for fn in MAX_ERROR_ULPS["float32"] if FUNCTIONS[fn].arity == 1]
    (x,) = arguments("float32", 1)
    surrounded = run([lambda v, fn=fn: _surrounded(fn, v) for fn in names], [x], ["float32"] * len(names))
    with np.errstate(all="ignore"):
        for fn, found in zip(names, surrounded, strict=True):
            inner = computed("float32", 1)[fn]
            assert same(found, np.maximum(inner, np.float32(-0.5)) + np.float32(1)).all(), fn


def _surrounded(fn: str, v: hl.Expr) -> hl.Expr:
    inner = apply_function("max", [apply_function(fn, [v], "float32"), Fraction(-1, 2)], "float32")
    return apply_function("add", [inner, 1], "float32")


def test_special_values_are_seen_behind_conversions_and_functions() -> None:
    x = np.array([nan, inf, -inf, 1, 1e300, 710, -0.0, 0.5] * 2)
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)

    def seen(test: str, inner: str, dtype: str, to: str) -> Element:
        return lambda v: apply_function(test, [apply_function(inner, [v], dtype)], to)

    with np.errstate(all="ignore"):
        for test in ("isnan", "isinf"):
            check = FUNCTIONS[test].run
            inner = ("sinh", "cosh", "exp", "asinh", "tan")
            elements = [seen(test, fn, "float32", "float32") for fn in inner]
            for fn, found in zip(inner, run(elements, [single], ["bool"] * len(inner)), strict=True):
                assert (found == check(FUNCTIONS[fn].run(single))).all(), (test, fn)
            found = one(seen(test, "to_float32", "float64", "float32"), x, dtype="bool")
            assert (found == check(single)).all(), test
            found = one(seen(test, "to_float64", "float32", "float64"), single, dtype="bool")
            assert (found == check(single)).all(), test


def test_rectified_sums_of_products_keep_their_nan() -> None:
    """A fused sum is `nnan`; what is computed from it before it is stored still is NaN where it is."""
    a = np.ones((4, 32), np.float32)
    a[2, 5], a[1, 7], a[3, 9] = nan, inf, -inf
    p, x, r = hl.ImageParam(hl.Float(32), 2, "p"), hl.Var("x"), hl.RDom([(0, 4)])
    total, out = hl.Func("total"), hl.Func("out")
    total[x] = hl.f32(-5)
    total[x] += p[x, r.x] * p[x, r.x]
    out[x] = apply_function("exp", [apply_function("max", [total[x], 0], "float32")], "float32")
    out.vectorize(x, 16)
    total.compute_at(out, x).vectorize(x).update().vectorize(x).unroll(r.x)
    result = np.empty(32, np.float32)
    out.compile_to_callable([p], hl.get_host_target())(hl.Buffer(a), hl.Buffer(result))
    right = np.ones(32, np.float32)
    right[[7, 9]], right[5] = inf, nan
    assert same(result, right).all()


def test_single_precision_calls_no_library_and_relu_is_one_instruction(tmp_path: Path) -> None:
    def assembly(elements: Sequence[Element], inputs: int) -> str:
        compiled, params = pipeline(elements, [halide_type("float32")] * inputs)
        compiled.compile_to_assembly(str(tmp_path / "kernel.s"), params, "kernel", AVX2)
        return (tmp_path / "kernel.s").read_text()

    for arity in (1, 2):
        names = [fn for fn, d in CASES if d == "float32" and FUNCTIONS[fn].arity == arity]
        text = assembly([lambda *v, fn=fn: apply_function(fn, v, "float32") for fn in names], arity)
        assert set(re.findall(r"call\w*\s+(\w+)", text)) <= {"kernel"}
    relu = assembly([lambda v: apply_function("max", [0, v], "float32")], 1)
    assert "vmaxps" in relu and not re.search(r"vcmp|vblend|vand|vadd", relu)


def test_what_is_shared_costs_no_time() -> None:
    """v * v + v, forty times over: a tree of 3^40 leaves."""

    def chain(v: hl.Expr) -> hl.Expr:
        for _ in range(40):
            squared = apply_function("mul", [v, v], "float32")
            v = apply_function(
                "add", [apply_function("mul", [squared, Fraction(1, 4)], "float32"), v], "float32"
            )
        return v

    x = np.linspace(-1, 0, 64).astype(np.float32)
    right = x
    for _ in range(40):
        right = right * right * np.float32(0.25) + right
    assert (one(chain, x) == right).all()
