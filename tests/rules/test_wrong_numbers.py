"""Laws that are wrong for few integers, few combinations of attributes, or large sizes: all are refuted."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from tensaurus.expr.analysis.breaking_values import draw_integers
from tensaurus.expr.analysis.turning_points import GapRecorder, turning_points
from tensaurus.expr.ir.integer_types import integer_limits
from tensaurus.rules.language.evidence import Tested, parse_evidence
from tensaurus.rules.language.rule import Rule, parse_rule
from tensaurus.rules.test.combine_attributes import combine_attributes
from tensaurus.rules.test.instances import InstanceMaker
from tensaurus.rules.test.verify_rule import Refuted, verify

WHOLE = {  # of x of one type; an y has the same
    "int64": [
        "Where(And(Less(70, Abs(x)), Less(Abs(x), 100)), 0, x) => x",
        "Where(Equal(Add(Mul(x, 3), 5), 3002), 1, x) => x",
        "Where(Equal(Sub(12345, x), 45), 1, x) => x",
        "Where(Equal(Div(x, 1000), 77), 1, x) => x",
        "Where(Equal(Neg(Mul(x, 7)), 7007), 1, x) => x",
        "Max(x, 71) => Where(Less(x, 72), 71, Where(Equal(x, 99), 71, x))",
        "Where(Equal(Add(x, y), 15000), 1, Add(x, y)) => Add(x, y)",
        "Equal(Mul(x, x), 15129) => Equal(x, 123)",
        "Clip(Clip(x, 71, 99), 80, 200) => Clip(x, 80, 98)",
        "Less(Add(x, 100), 371) => Less(x, 270)",
        "Mul(Div(x, 7), 7) => Sub(x, Mod(x, 7))",
        "Div(Div(x, 100), 7) => Div(x, 701)",
        "Div(Sub(x, 4096), 4096) => Sub(Div(x, 4096), 1)",
        "Mod(Neg(x), 9) => Neg(Mod(x, 9))",
        "Mod(Mod(x, 1001), 91) => Mod(x, 92)",
        "Div(Mul(x, 1000), 1000) => x",
        "Cast(Cast(x, to='int8', **a), to='int64', **b) => x",
        "Cast(Cast(x, to='int32', **a), to='int64', **b) => x",
        "Cast(x, to='bool', **a) => Greater(x, 0)",
        "Cast(Cast(x, to='bool', **a), to='int64', **b) => Clip(x, 0, 1)",
    ],
    "int32": [
        "Where(And(Greater(x, 71), Less(x, 99)), 0, x) => x",
        "Where(And(Less(Add(Mul(x, 3), 5), 3100), Less(3000, Add(Mul(x, 3), 5))), 1, x) => x",
        "Min(Max(x, 71), 99) => Max(Min(x, 99), 72)",
        "Mod(x, 12) => Mod(x, 12, fmod=1)",
        "Less(x, Add(x, 77)) => Equal(x, x)",
        "Greater(Mul(x, x), -1) => Equal(x, x)",
        "Max(Sub(x, y), 0) => Sub(Max(x, y), y)",
        "Cast(Cast(x, to='uint8', **a), to='int32', **b) => Max(x, 0)",
    ],
    "int16": ["Sub(Max(Add(x, 200), 0), 200) => Max(x, -200)"],
    "int8": [
        "Mod(Add(x, 100), 100) => Mod(x, 100)",
        "Div(Mul(x, 3), 3) => x",
        "Neg(Neg(Abs(x))) => Max(Abs(x), 0)",
    ],
    "uint8": [
        "Less(Sub(x, 1), x) => Equal(x, x)",
        "Less(Add(x, 1), Add(y, 1)) => Less(x, y)",
    ],
}
PLACES = [
    "Gather(x, i, axis=0) => Gather(x, Abs(i), axis=0)",
    "Gather(x, i, axis=0) => Gather(x, Max(i, 0), axis=0)",
    "Gather(x, i, axis=0) => Gather(x, Where(Equal(i, -2), 0, i), axis=0)",
]
FLOATS = [
    "Where(And(Less(71, Abs(x)), Less(Abs(x), 72)), 0, x) => x",
    "Where(And(Less(Add(Mul(x, 3), 5), 100), Less(98, Add(Mul(x, 3), 5))), 0, x) => x",
    "Where(And(Less(1000, Sub(7, Mul(x, 4))), Less(Sub(7, Mul(x, 4)), 1002)), 0, x) => x",
    "Cast(Cast(x, to='int16', **a), to='float32', **b) => Cast(Cast(x, to='int8', **a), to='float32', **b)",
    "Cast(Cast(x, to='int32', **a), to='float32', **b) => Floor(x)",
]
COMBINED = [
    " ".join(law.split())
    for law in """
Conv(Conv(x, w, strides=s, pads=p, group=1, dilations=d, **a), v, strides=t, pads=p, group=1,
    dilations=e, **b) => Conv(x, Reshape(MatMul(Reshape(v, shape=(dim(v,0), dim(v,1))), Reshape(w,
    shape=(dim(w,0), dim(w,1)))), shape=(dim(v,0), dim(w,1), 1, 1)), strides=(s[0]*t[0], s[1]*t[0]),
    pads=p, group=1, dilations=e, **b) where rank(x) == 4, dim(w,2) == 1, dim(w,3) == 1, dim(v,2) == 1,
    dim(v,3) == 1, all(n == 0 for n in p)

Conv(x, w, strides=s, dilations=d, **a) => Conv(x, w, strides=s, dilations=(d[0], d[0]), **a) where
    rank(x) == 4, s[0] == 2

Conv(x, w, group=g, strides=s, **a) => Conv(x, w, group=g, strides=(s[0], s[1] if g == 1 else s[0]), **a)
    where rank(x) == 4

Conv(x, w, group=g, dilations=d, **a) => Conv(x, w, group=g, dilations=(d[0], d[1] if g == 1 else 1),
    **a) where rank(x) == 4

Conv(x, w, strides=s, pads=p, dilations=d, **a) => Conv(x, w, strides=s, pads=p, dilations=(d[0], 1 if
    s[0] == 2 else d[1]), **a) where rank(x) == 4, p[0] == 1, dim(w,3) == 2

MaxPool(MaxPool(x, kernel_shape=k, strides=s, pads=p, dilations=d, **a), kernel_shape=l, strides=t,
    pads=q, dilations=e, **b) => MaxPool(x, kernel_shape=(k[0]+l[0]-1, k[1]+l[1]-1), strides=t, pads=p,
    dilations=d, **b) where rank(x) == 4, all(n == 1 for n in s + d), all(n == 0 for n in p + q)

AveragePool(x, count_include_pad=c, pads=p, **a) => AveragePool(x, count_include_pad=1, pads=p, **a)
    where rank(x) == 4, p[0] == 0, p[1] == 0

MaxPool(x, kernel_shape=k, dilations=d, **a) => MaxPool(x, kernel_shape=k, dilations=(d[0], 1), **a)
    where rank(x) == 4, d[0] == 1

AveragePool(x, kernel_shape=k, strides=s, pads=p, count_include_pad=c, **a) => AveragePool(x,
    kernel_shape=k, strides=s, pads=p, count_include_pad=1-c, **a) where rank(x) == 4, p[2] == 0, p[3] ==
    0

MaxPool(Relu(x), kernel_shape=k, pads=p, dilations=d, **a) => Relu(MaxPool(x, kernel_shape=k, pads=p,
    dilations=d, **a)) where rank(x) == 4, p[0] == 0

AveragePool(AveragePool(x, kernel_shape=k, strides=s, pads=p, **a), kernel_shape=l, strides=t, pads=q,
    **b) => AveragePool(x, kernel_shape=(k[0]*l[0], k[1]*l[1]), strides=(s[0]*t[0], s[1]*t[1]), pads=p,
    **a) where rank(x) == 4, all(n == 0 for n in p + q)

ReduceMax(x, axes=a, keepdims=k, **r) => ReduceMax(x, axes=(0,), keepdims=k, **r) where rank(x) <= 2,
    len(a) == 1

ReduceMean(ReduceMean(x, axes=a, keepdims=k, **r), axes=b, keepdims=l, **s) => ReduceMean(x, axes=a + b,
    keepdims=l, **s) where k == 0, len(a) == 1, len(b) == 1

Softmax(x, axis=k) => Softmax(x, axis=rank(x)-1) where k >= 0

ArgMax(x, axis=k, keepdims=d, select_last_index=s) => ArgMax(x, axis=k, keepdims=d,
    select_last_index=1-s)

ReduceSum(Transpose(x, perm=p), axes=a, keepdims=0, **r) => ReduceSum(x, axes=tuple(p[i] for i in a),
    keepdims=0, **r) where len(a) == 1, rank(x) == 3

Slice(Slice(x, starts=s, ends=e, axes=a, steps=t), starts=u, ends=f, axes=a, steps=v) => Slice(x,
    starts=(s[0]+u[0],), ends=(s[0]+f[0],), axes=a, steps=(t[0]*v[0],)) where len(s) == 1, s[0] >= 0,
    u[0] >= 0, e[0] >= 0, f[0] >= 0

Slice(x, starts=s, ends=e, axes=a, steps=t) => Slice(x, starts=(max(s[0], 0),), ends=e, axes=a, steps=t)
    where len(s) == 1, t[0] == 2

Slice(x, starts=s, ends=e, axes=a, steps=t) => Slice(x, starts=s, ends=e, axes=a, steps=(2,)) where
    len(s) == 1, t[0] == 3

Pad(Slice(x, starts=s, ends=e, axes=a, steps=t), pads=p, mode='constant', value=0, **r) => x where len(s)
    == 1, len(p) == 2*rank(x), s[0] == 1, p[0] == 1, e[0] >= dim(x, 0)
""".strip().split("\n\n")
]
LARGE = [
    "Relu(x) => LeakyRelu(x, alpha=0 if dim(x, 0) < 500 else 1) where rank(x) == 2",
    "Add(x, y) => Sub(x, y) where numel(x) > 1200, rank(x) == 2",
    "Relu(x) => LeakyRelu(x, alpha=0 if 3*dim(x, 0) + 5 <= 1505 else 1) where rank(x) == 1",
    "Relu(x) => LeakyRelu(x, alpha=1 if dim(x, 1) == 777 else 0) where rank(x) == 2",
    "Softmax(x, axis=k) => Softmax(x, axis=k if dim(x, 0) <= 1000 else 0) where rank(x) == 2",
    "Relu(x) => LeakyRelu(x, alpha=1 if dim(x, 0) * dim(x, 1) == 2049 else 0) where rank(x) == 2",
    "MatMul(x, y) => MatMul(Neg(x), y) where dim(x, 1) >= 600, rank(x) == 2, rank(y) == 2",
]


def rule_of(law: str, tags: str = "") -> Rule:
    (rule,) = parse_rule(f"wrong {tags}: {law}")
    return rule


def typed(dtype: str, law: str) -> Rule:
    names = sorted({*re.findall(r"\b[xy]\b", law)})
    return rule_of(f"{law} where {', '.join(f'dtype({name}) == {dtype!r}' for name in names)}", "[any]")


@pytest.mark.parametrize(("dtype", "law"), [(dtype, law) for dtype, laws in WHOLE.items() for law in laws])
def test_a_law_wrong_for_few_integers_is_refuted(dtype: str, law: str) -> None:
    assert isinstance(found := verify(typed(dtype, law), steps=0), Refuted), found


@pytest.mark.parametrize("law", PLACES)
def test_a_law_wrong_for_negative_indices_is_refuted(law: str) -> None:
    rule = rule_of(f"{law} where dtype(i) == 'int64'", "[any]")
    assert isinstance(found := verify(rule, steps=0), Refuted), found


def test_strides_of_two_pointwise_convolutions_are_told_apart() -> None:
    """With t = (3, 2) and sizes that agree nevertheless."""
    assert isinstance(found := verify(rule_of(COMBINED[0]), steps=2000), Refuted), found


@pytest.mark.nightly(every=8)
@pytest.mark.parametrize("law", [*FLOATS, *COMBINED[1:], *LARGE])
def test_a_law_wrong_only_at_coincidences_is_refuted(law: str) -> None:
    found = verify(rule_of(law), steps=0)
    if not isinstance(found, Refuted):  # then at the cases in which the forms of both sides differ
        found = verify(rule_of(law), steps=2000)
    assert isinstance(found, Refuted), found


@pytest.mark.parametrize(
    ("function", "points"),
    [
        (lambda x: x * 3 + 5 - 100, [31, 32]),
        (lambda x: -(x * 7) - 7007, [-1001]),
        (lambda x: x * x - 15129, [123, -123]),
        (lambda x: np.trunc(x / 1000) - 77, [77000]),
        (lambda x: x * 0 + 1, []),
    ],
)
def test_zeros_of_gaps_are_found(function: object, points: list[int]) -> None:
    found = turning_points(lambda n: np.atleast_1d(function(n)), -(2.0**62), 2.0**62, whole=True)  # type: ignore[operator]
    assert all(any(abs(n - point) <= max(1, abs(point) / 500) for n in found) for point in points)
    assert bool(found) == bool(points)


def test_turning_points_are_found() -> None:
    watched = GapRecorder()
    watched.call("lt", [np.array([7, 9]), np.array(8)], "int64")
    watched.call("add", [np.array([100]), np.array([20])], "int8")
    watched.call("to_uint8", [np.array([250.0])])
    assert {-1.0, 1.0, 248.0, -7.0, -5.0, 250.0} <= set(watched.gaps.tolist())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_are_drawn_from_the_whole_range(dtype: str) -> None:
    low, high = integer_limits(dtype)
    draw = partial(draw_integers, dtype, (50,), near=[71, 99])
    drawn = np.concatenate([draw(rng=np.random.default_rng(seed)) for seed in range(100)])
    assert str(drawn.dtype) == dtype
    assert {low, high, 71, 99, 70, 100} <= set(drawn.tolist())
    assert len(set(range(72, 99)) & set(drawn.tolist())) > 10
    orders = {abs(n).bit_length() for n in drawn.tolist()}
    assert orders >= set(range(high.bit_length()))


def test_no_bound_is_claimed_of_integers_alone() -> None:
    law = "Min(Max(x, 3), 7) => Max(Min(x, 7), 3)"
    found = verify(typed("int64", law), steps=0)
    assert isinstance(found, Tested) and found.bits == 0 and "no error bound" in str(found)
    mixed = verify(rule_of("Where(c, x, x) => x where dtype(x) == 'float32'", "[any]"), steps=0)
    assert isinstance(mixed, Tested) and mixed.bits and mixed.sampled
    assert str(mixed).endswith("for the integers drawn)") and parse_evidence(str(mixed)) == mixed


def test_triples_of_attributes_are_covered_and_reported() -> None:
    shape = "(dim(b,0),) + ones(rank(x)-2)"
    rule = rule_of(f"Conv(x, w, b, **a) => Add(Conv(x, w, **a), Reshape(b, shape={shape}))")
    maker = InstanceMaker(rule, 0)
    list(maker.instances(20))
    before = len(maker.covering.missing_triples())
    list(combine_attributes(maker, 400))
    assert len(maker.covering.missing_triples()) < before / 2
    assert "% of triples of attributes and sizes" in str(maker.covering)
