"""Models that differ in what they round and in nothing else, and models that do not.

Each pair is (name, original, candidate): bodies of graphs from x to y.
"""

from __future__ import annotations

from typing import NamedTuple

HALF, BRAIN, SINGLE, DOUBLE, INT8, UINT8, INT32, INT64 = 10, 16, 1, 11, 3, 2, 6, 7


class Pair(NamedTuple):
    name: str
    first: str
    second: str


def number(name: str, value: float) -> str:
    return f"{name} = Constant<value = float {{{value!r}}}>() "


def whole(name: str, *values: int) -> str:
    return f"{name} = Constant<value_ints = {list(values)}>() "


def cast(*kinds: int, of: str = "x", to: str = "y") -> str:
    names = [of, *(f"{to}_{k}" for k in range(len(kinds) - 1)), to]
    steps = zip(kinds, names, names[1:], strict=False)
    return " ".join(f"{after} = Cast<to = {kind}>({before})" for kind, before, after in steps) + " "


def normalized(variance: str) -> str:
    """Less the mean, by the root of the variance v; m is the mean, d the difference."""
    begin = whole("axis", 1) + number("e", 1e-5) + "m = ReduceMean(x, axis) d = Sub(x, m) "
    return f"{begin}{variance} w = Add(v, e) s = Sqrt(w) y = Div(d, s)"


COPY = "y = Identity(x)"
NONE = number("z", 0.0) + "y = Mul(x, z)"
HALVED = cast(HALF, SINGLE)
ONE = number("one", 1.0)
MAGIC = number("c", 12582912.0)  # 1.5 * 2**23: next to it are whole numbers alone
ROUNDED = MAGIC + "a = Add(x, c) y = Sub(a, c)"
APART = MAGIC + number("d", 12582784.0) + "a = Add(x, c) "
SHIFTED = number("e", 128.0)
STEP = number("s", 0.02) + "t = Div(x, s) "
CLIPPED = number("l", 0.0) + number("u", 255.0) + "k = Clip(b, l, u) "
QUANTIZED = (
    MAGIC + number("d", 12582784.0) + "a = Add(t, c) b = Sub(a, d) " + CLIPPED,
    SHIFTED + "b = Add(t, e) " + CLIPPED,
)
PRODUCTS = "h = MatMul(x, first) m = MatMul(h, second) "
PRODUCTS_FIRST = "h = MatMul(first, second) m = MatMul(x, h) "
TWO_SUM = "s = Add(x, c) p = Sub(s, x) q = Sub(s, p) u = Sub(x, q) v = Sub(c, p) y = Add(u, v)"
LEFT = "s = Add(x, c) p = Sub(s, c) "
SPLIT = number("c", 4097.0) + "a = Mul(x, c) b = Sub(a, x) "
SQUARES = "q = Mul(x, x) a = ReduceMean(q, axis) n = Mul(m, m) v = Sub(a, n)"
LOG = "a = Abs(x) u = Add(one, a) y = Log(u)"

DIFFERENT = [
    Pair("rounded to half", HALVED, COPY),
    Pair("not rounded to half", COPY, HALVED),
    Pair("rounded to bfloat16", cast(BRAIN, SINGLE), COPY),
    Pair("another narrow type", cast(BRAIN, SINGLE), HALVED),
    Pair("before a product, not behind", number("c", 3.0) + cast(HALF, SINGLE, to="a") + "y = Mul(a, c)",
         number("c", 3.0) + "a = Mul(x, c) " + cast(HALF, SINGLE, of="a")),
    Pair("a sum, not its terms", "a = Add(x, x) b = Add(a, x) " + cast(HALF, SINGLE, of="b"),
         cast(HALF, SINGLE, to="c") + "a = Add(c, c) y = Add(a, c)"),
    Pair("before a relu", "r = Relu(x) " + cast(HALF, SINGLE, of="r"), "y = Relu(x)"),
    Pair("one term of two", cast(HALF, SINGLE, to="a") + "y = Add(a, x)", "y = Add(x, x)"),
    Pair("before exp", cast(HALF, SINGLE, to="a") + "y = Exp(a)", "y = Exp(x)"),
    Pair("before a product", cast(HALF, SINGLE, to="a") + "y = MatMul(a, first)", "y = MatMul(x, first)"),
    Pair("between matrix products", "a = MatMul(x, first) " + cast(HALF, SINGLE, of="a", to="b")
         + "y = MatMul(b, second)", "a = MatMul(x, first) y = MatMul(a, second)"),
    Pair("beyond the range", number("c", 1e5) + "a = Mul(x, c) " + cast(HALF, SINGLE, of="a", to="b")
         + "y = Div(b, c)", COPY),
    Pair("infinite, not clipped", HALVED, number("l", -65504.0) + number("u", 65504.0) + "c = Clip(x, l, u) "
         + cast(HALF, SINGLE, of="c")),
    Pair("subnormal, not zero", HALVED, number("t", 2.0**-14) + number("z", 0.0)
         + "a = Abs(x) b = Less(a, t) c = Where(b, z, x) " + cast(HALF, SINGLE, of="c")),
    Pair("towards zero, not to the nearest", cast(INT32, SINGLE), "y = Round(x)"),
    Pair("towards zero, not down", cast(INT32, SINGLE), "y = Floor(x)"),
    Pair("integers wrap", cast(INT8, SINGLE), number("l", -128.0) + number("u", 127.0) + "c = Clip(x, l, u) "
         + cast(INT32, SINGLE, of="c")),
    Pair("unsigned of negative", cast(UINT8, SINGLE), "r = Relu(x) " + cast(UINT8, SINGLE, of="r")),
    Pair("not a number as an integer", cast(INT64, INT32, SINGLE), cast(INT32, SINGLE)),
    Pair("halves to even, not away from zero", "y = Round(x)", number("h", 0.5)
         + "s = Sign(x) a = Abs(x) b = Add(a, h) f = Floor(b) y = Mul(f, s)"),
    Pair("halves to even, not up", "y = Round(x)", number("h", 0.5) + "b = Add(x, h) y = Floor(b)"),
    Pair("a large constant and back", ROUNDED, COPY),
    Pair("a large negative constant", number("c", -12582912.0) + "a = Add(x, c) y = Sub(a, c)", COPY),
    Pair("two large constants", MAGIC + number("d", -12582912.0) + "a = Add(x, c) y = Add(a, d)", COPY),
    Pair("two large constants, and the rest", MAGIC + number("d", 12579840.0) + number("e", 3072.0)
         + "a = Add(x, c) b = Sub(a, d) y = Sub(b, e)", COPY),
    Pair("two large constants, 128 apart", APART + "y = Sub(a, d)", SHIFTED + "y = Add(x, e)"),
    Pair("a row of large constants", MAGIC + "a = Add(x, c) d = Constant<value = float[16] {"
         + ", ".join(["12582784.0"] * 16) + "}>() y = Sub(a, d)", SHIFTED + "y = Add(x, e)"),
    Pair("to eighths, and an offset", number("c", 1572864.0) + number("d", 1572800.125)
         + "a = Add(x, c) y = Sub(a, d)", number("e", 63.875) + "y = Add(x, e)"),
    Pair("a quantizer", *(STEP + body + cast(UINT8, SINGLE, of="k") for body in QUANTIZED)),
    Pair("to halves", number("c", 8388608.0) + "a = Add(x, c) y = Sub(a, c)", COPY),
    Pair("to eighths", number("c", 1572864.0) + "a = Add(x, c) y = Sub(a, c)", COPY),
    Pair("nothing left", number("c", 1e10) + "a = Add(x, c) y = Sub(a, c)", COPY),
    Pair("nothing left in float64 either", number("c", 1e20) + "a = Add(x, c) y = Sub(a, c)", COPY),
    Pair("rounded before a relu", MAGIC + "a = Add(x, c) b = Sub(a, c) y = Relu(b)", "y = Relu(x)"),
    Pair("scales that overflow", number("c", 1e30) + number("d", 1e-30)
         + "a = Mul(x, c) b = Mul(a, c) e = Mul(b, d) y = Mul(e, d)", COPY),
    Pair("scales that underflow", number("c", 1e30) + number("d", 1e-30)
         + "a = Mul(x, d) b = Mul(a, d) e = Mul(b, c) y = Mul(e, c)", COPY),
    Pair("the first half of the digits", SPLIT + "y = Sub(a, b)", COPY),
    Pair("the other half", SPLIT + "h = Sub(a, b) y = Sub(x, h)", NONE),
    Pair("what a quotient lost", number("c", 3.0) + "a = Div(x, c) b = Mul(a, c) y = Sub(x, b)", NONE),
    Pair("what a sum lost", number("c", 0.1) + TWO_SUM, NONE),
    Pair("what a larger number lost", number("c", 1000.0) + LEFT + "y = Sub(x, p)", NONE),
    Pair("what a sum lost, scaled", number("c", 1000.0) + number("t", 1e6)
         + LEFT + "u = Sub(x, p) e = Mul(u, t) y = Add(x, e)", COPY),
    Pair("a softmax that overflows", "y = Softmax<axis = 1>(x)",
         whole("axis", 1) + "e = Exp(x) s = ReduceSum(e, axis) y = Div(e, s)"),
]  # fmt: skip

WIDE = [  # of float64
    Pair("rounded twice", cast(HALF, DOUBLE), cast(SINGLE, HALF, DOUBLE)),
    Pair("rounded to float32", cast(SINGLE, DOUBLE), COPY),
    Pair("a sum in float32", cast(SINGLE, to="a") + "b = Add(a, a) c = Add(b, a) " + cast(DOUBLE, of="c"),
         "b = Add(x, x) y = Add(b, x)"),
]  # fmt: skip

WHOLE = [  # of int64
    Pair("integers in float32", cast(SINGLE, INT64), COPY),
    Pair("integers in float64", cast(DOUBLE, INT64), COPY),
]

EQUAL = [
    Pair("rounded again", cast(HALF, SINGLE, HALF, SINGLE), HALVED),
    Pair("wide before narrow", cast(DOUBLE, HALF, SINGLE), HALVED),
    Pair("wide and back", cast(DOUBLE, SINGLE), COPY),
    Pair("moved, then rounded", cast(HALF, SINGLE, to="a") + "b = Transpose(a) y = Transpose(b)",
         "b = Transpose(x) " + cast(HALF, SINGLE, of="b", to="c") + "y = Transpose(c)"),
    Pair("a sign", "a = Neg(x) " + cast(HALF, SINGLE, of="a"), cast(HALF, SINGLE, to="a") + "y = Neg(a)"),
    Pair("a relu", "a = Relu(x) " + cast(HALF, SINGLE, of="a"), cast(HALF, SINGLE, to="a") + "y = Relu(a)"),
    Pair("products in another order", PRODUCTS + cast(HALF, SINGLE, of="m"),
         PRODUCTS_FIRST + cast(HALF, SINGLE, of="m")),
    Pair("in bfloat16", PRODUCTS + cast(BRAIN, SINGLE, of="m"), PRODUCTS_FIRST + cast(BRAIN, SINGLE, of="m")),
    Pair("products behind, too", PRODUCTS + cast(HALF, SINGLE, of="m", to="n") + "y = MatMul(n, first)",
         PRODUCTS_FIRST + cast(HALF, SINGLE, of="m", to="n") + "y = MatMul(n, first)"),
    Pair("a large constant, with signs", ROUNDED,
         MAGIC + number("d", -12582912.0) + "a = Add(c, x) y = Add(a, d)"),
    Pair("small constants", number("c", 0.1) + number("d", 0.2) + "a = Add(x, c) y = Add(a, d)",
         number("c", 0.3) + "y = Add(x, c)"),
    Pair("small scales", number("c", 0.1) + number("d", 7.0) + "a = Mul(x, c) y = Mul(a, d)",
         number("c", 0.7) + "y = Mul(x, c)"),
    Pair("pixels", number("c", 127.5) + "a = Mul(x, c) b = Add(a, c) e = Sub(b, c) y = Div(e, c)", COPY),
    Pair("a sigmoid", ONE + "n = Neg(x) e = Exp(n) a = Add(e, one) y = Reciprocal(a)", "y = Sigmoid(x)"),
    Pair("a softmax", whole("axis", 1) + "m = ReduceMax(x, axis) d = Sub(x, m) e = Exp(d) "
         "s = ReduceSum(e, axis) y = Div(e, s)", "y = Softmax<axis = 1>(x)"),
    Pair("a bias", number("c", 3.5) + number("d", 1.25)
         + "a = MatMul(x, first) b = Add(a, c) y = Sub(b, d)",
         number("c", 2.25) + "a = MatMul(x, first) y = Add(a, c)"),
    Pair("swish", "s = Sigmoid(x) y = Mul(x, s)",
         ONE + "n = Neg(x) e = Exp(n) a = Add(one, e) y = Div(x, a)"),
    Pair("hardswish", number("c", 3.0) + number("u", 6.0) + number("z", 0.0)
         + "a = Add(x, c) b = Clip(a, z, u) e = Mul(x, b) y = Div(e, u)", "y = HardSwish(x)"),
    Pair("tanh", number("t", 2.0) + ONE + "a = Mul(x, t) s = Sigmoid(a) b = Mul(s, t) y = Sub(b, one)",
         "y = Tanh(x)"),
    Pair("mean of squares", normalized(SQUARES), normalized(SQUARES)),
    Pair("gelu", number("h", 0.5) + number("r", 1.4142135) + ONE
         + "a = Div(x, r) b = Erf(a) e = Add(b, one) f = Mul(x, e) y = Mul(f, h)",
         number("h", 0.5) + number("r", 1.4142135) + ONE
         + "a = Div(x, r) b = Erf(a) e = Add(one, b) f = Mul(e, h) y = Mul(x, f)"),
]  # fmt: skip

# where only rare inputs tell, and the verdict says so in a note
TAILS = [
    Pair("log of one and more", ONE + LOG, ONE + number("t", 1e-30) + number("z", 0.0)
         + "a = Abs(x) b = Max(a, t) u = Add(one, b) l = Log(u) d = Sub(u, one) e = Equal(d, z) "
         "g = Where(e, one, d) r = Div(l, g) s = Where(e, one, r) y = Mul(b, s)"),
]  # fmt: skip
