"""Rules are proved for all sizes, and no wrong rule is: each wrong one has an instance on which it fails."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from tensaurus.expr.sizes.open_questions import Question
from tensaurus.expr.sizes.size import Symbol, atoms, evaluate, is_nonnegative, polynomial, substitute
from tensaurus.ops import Op, Untypable, registry
from tensaurus.ops.examples import examples_of
from tensaurus.rules.language.evidence import Proved
from tensaurus.rules.language.rule import library, parse_rule
from tensaurus.rules.prove.attribute_domain import domain_of, lower_bound
from tensaurus.rules.prove.proof import NO_CASES, Unproved, prove
from tensaurus.rules.prove.size_assumptions import NO_LOWER_BOUND, solve_question
from tensaurus.rules.prove.unknown_values import UNKNOWN_VALUE_ERRORS

LIBRARY = {rule.name: rule for rule in library() if "off" not in rule.tags}

WRONG = {
    # conditions dropped
    "a scale of any shape leaves a matrix product": "MatMul(Mul(x, s), y) => Mul(MatMul(x, y), s)",
    "a scale per row or per column": (
        "Mul(MatMul(x, w), s) => MatMul(x, Mul(w, s)) where rank(x) == 2, rank(w) == 2"
    ),
    "vectors shift the rows of a weight": (
        "Mul(MatMul(x, w), s) => MatMul(x, Mul(w, s)) where rank(w) >= 2, rank(s) < 2 or dim(s,-2) == 1"
    ),
    "a sum of matrix products that broadcast": "Add(MatMul(x, z), MatMul(y, z)) => MatMul(Add(x, y), z)",
    "interchange along one axis": (
        "Concat(Concat(x, y, axis=k), Concat(z, w, axis=j), axis=j) "
        "=> Concat(Concat(x, z, axis=j), Concat(y, w, axis=j), axis=k)"
    ),
    "sums of unequal parts": (
        "Concat(Add(x, y), Add(z, w), axis=k) => Add(Concat(x, z, axis=k), Concat(y, w, axis=k))"
    ),
    "padded shifts": "AveragePool(Add(x, t), **a) => Add(AveragePool(x, **a), t) where numel(t) == 1",
    "a shift before a padded convolution": (
        "Conv(Add(x, t), w, group=1, **a) => Add(Conv(x, w, group=1, **a), Reshape(Mul(ReduceSum(w, "
        "axes=tuple(range(1, rank(w))), keepdims=0), t), shape=(dim(w,0),) + ones(rank(w)-2))) "
        "where rank(t) == 0"
    ),
    # operands and attributes changed
    "operands of a matrix product swapped": "MatMul(x, y) => MatMul(y, x) where shape(x) == shape(y)",
    "operands of a difference swapped": "Sub(x, y) => Sub(y, x) where shape(x) == shape(y)",
    "a quotient of quotients": "Div(Div(x, y), z) => Div(x, Div(y, z))",
    "permutations the other way": (
        "Transpose(Transpose(x, perm=p), perm=q) => Transpose(x, perm=tuple(q[i] for i in p))"
    ),
    "a permutation undone by itself": "Transpose(Transpose(x, perm=p), perm=p) => x",
    "half of a sum transposed": (
        "Transpose(Add(x, y), perm=p) => Add(Transpose(x, perm=p), y) where shape(x) == shape(y)"
    ),
    "the first part is the second": "Split(Concat(x, y, axis=k), axis=k, split=s)[0] => y where len(s) == 2",
    "pads added crosswise": (
        "Conv(Pad(x, pads=q), w, pads=p, **a) => Conv(x, w, pads=tuple(m + n for m, n in "
        "zip(p, q[rank(x)+2:] + q[2:rank(x)])), **a) where all(n >= 0 for n in q)"
    ),
    "pads of any sign": (
        "Conv(Pad(x, pads=q), w, pads=p, **a) => Conv(x, w, pads=tuple(m + n for m, n in "
        "zip(p, q[2:rank(x)] + q[rank(x)+2:])), **a)"
    ),
    "pads that keep the size": "Pad(x, pads=p) => x",
    "any pad value": "Pad(Relu(x), pads=p, value=v) => Relu(Pad(x, pads=p, value=v))",
    "pads of zero in a maximum": (
        "MaxPool(Pad(x, pads=(0, 0, 1, 0, 0, 1)), kernel_shape=k, pads=p, **a) "
        "=> MaxPool(x, kernel_shape=k, pads=(1, 1), **a) where p == (0, 0)"
    ),
    # order
    "a bound that is out of reach": "Min(x, 1000000) => x",
    "a bound that is nearly none": "Clip(x, 0, 100000) => Relu(x)",
    "a shift that makes all positive": "Relu(Add(x, 100000)) => Add(x, 100000)",
    "leaky relus of any slope": "LeakyRelu(LeakyRelu(x, alpha=a), alpha=b) => LeakyRelu(x, alpha=a*b)",
    "a leaky relu is the maximum": "LeakyRelu(x, alpha=a) => Max(x, Mul(x, a))",
    "a scale that is not zero": "Relu(Mul(x, s)) => Mul(Relu(x), s) where const(s), value(s) != 0",
    "a scale that is not negative one": "Relu(Mul(x, s)) => Mul(Relu(x), s) where value(s) > 0 - 1",
    "relu of a sum": "Relu(Add(x, y)) => Add(Relu(x), Relu(y))",
    "relu is odd": "Relu(Neg(x)) => Neg(Relu(x))",
    "max and min swapped": "Max(Min(x, y), z) => Min(Max(x, z), y)",
    "windows in the padding alone": "MaxPool(Relu(x), **a) => Relu(MaxPool(x, **a))",
    # sizes that coincide
    "the mean of two parts": (
        "GlobalAveragePool(Concat(x, y, axis=2)) => Mul(Add(GlobalAveragePool(x), GlobalAveragePool(y)), 0.5)"
    ),
    "rows and columns of one length": (
        "Reshape(Transpose(x, perm=(1, 0)), shape=s, allowzero=z) => Reshape(x, shape=s, allowzero=z)"
    ),
    # places that Z3 decides about
    "a crop that is forgotten": (
        "Pad(Pad(x, pads=p, value=v), pads=q, value=v) "
        "=> Pad(x, pads=tuple(m + n for m, n in zip(p, q)), value=v)"
    ),
    "a part moved by one": (
        "Slice(x, starts=s, ends=e, axes=(0,), steps=(1,)) "
        "=> Slice(x, starts=tuple(n + 1 for n in s), ends=tuple(n + 1 for n in e), axes=(0,), steps=(1,))"
    ),
    "the other half": (
        "Slice(Concat(x, y, axis=0), starts=s, ends=e, axes=(0,), steps=(1,)) "
        "=> Slice(y, starts=s, ends=e, axes=(0,), steps=(1,)) "
        "where s[0] >= 0, e[0] >= 0, e[0] <= dim(x,0), shape(x) == shape(y)"
    ),
    "a pad that is cut off on the other side": (
        "Slice(Pad(x, pads=p, value=v), starts=s, ends=e, axes=(0,), steps=(1,)) => x "
        "where len(p) == 2, s == (p[1],), e == (dim(x,0) + p[1],), p[0] >= 0, p[1] >= 0"
    ),
    # groups
    "weights of groups side by side": (
        "Concat(Conv(x, v, group=g, **a), Conv(x, w, group=g, **a), axis=1) "
        "=> Conv(x, Concat(v, w, axis=0), group=g, **a)"
    ),
    "groups of unequal inputs": (
        "Add(Conv(x, v, group=g, **a), Conv(y, w, group=g, **a)) "
        "=> Conv(Concat(x, y, axis=1), Concat(v, w, axis=1), group=g, **a)"
    ),
    "groups exchanged": (
        "Conv(Concat(x, y, axis=1), w, group=2, **a) => Conv(Concat(y, x, axis=1), w, group=2, **a) "
        "where shape(x) == shape(y)"
    ),
    # what cases may leave out
    "one slope in place of two": (
        "LeakyRelu(LeakyRelu(x, alpha=a), alpha=b) => LeakyRelu(x, alpha=a*a) where a >= 0, b >= 0"
    ),
    "a reshape that is a square": (
        "Transpose(Reshape(Concat(x, y, axis=0), shape=s, allowzero=1), perm=p) "
        "=> Reshape(Concat(x, y, axis=0), shape=s, allowzero=1) "
        "where len(s) == 1 or rank(x) == 2 and all(n >= 1 for n in s) and len(s) == 2"
    ),
    "an axis that is a switch": (
        "CumSum(CumSum(x, axis=k, exclusive=0, reverse=0), axis=1, exclusive=0, reverse=0) => CumSum("
        "CumSum(x, axis=1, exclusive=0, reverse=0), axis=min(k,1), exclusive=0, reverse=0)"
    ),
    "pads that are even": (
        "Pad(Pad(x, pads=p, mode='constant', value=v), pads=q, mode='constant', value=v) "
        "=> Pad(x, pads=tuple(i + j for i, j in zip(p, q)), mode='constant', value=v) "
        "where all(n >= 0 for n in q), all(n % 2 == 0 for n in p)"
    ),
    "a slope that is the rank": "Relu(x) => LeakyRelu(x, alpha=0.01*rank(x))",
    "a scale that depends on the rank": (
        "Relu(Mul(x, s)) => Mul(Relu(x), s) where const(s), rank(x) == 2 or value(s) > 0"
    ),
    "integers that wrap": (
        "Max(Sub(Cast(x, to='uint8'), Cast(y, to='uint8')), Sub(Cast(y, to='uint8'), Cast(x, to='uint8'))) "
        "=> Abs(Sub(Cast(x, to='uint8'), Cast(y, to='uint8')))"
    ),
    "what nothing is known of": "Relu(Mul(x, s)) => Mul(Relu(x), s) where positive(s) or filled(s) == 0-1",
    "a pad of truths": (
        "Pad(Not(x), pads=p, mode='constant', value=v) => Not(Pad(x, pads=p, mode='constant', value=0))"
    ),
    "types there and back": "Transpose(CastLike(CastLike(x, y), x), perm=p) => Transpose(x, perm=p)",
    "an order that one type has": (
        "Transpose(x, perm=p) => x where p == tuple(range(rank(x))) or dtype(x) == 'int64' and rank(x) == 2"
    ),
    # what is taken out of maxima over places
    "a maximum of negatives": "ReduceMax(Neg(x), **a) => Neg(ReduceMax(x, **a))",
    "a minimum of differences": "ReduceMin(Sub(s, x), **a) => Sub(s, ReduceMin(x, **a)) where numel(s) == 1",
    "a maximum of what is scaled": (
        "ReduceMax(Mul(x, s), **a) => Mul(ReduceMax(x, **a), s) where numel(s) == 1"
    ),
    "a maximum of two that move": (
        "ReduceMax(Add(x, y), axes=(0,), keepdims=1) "
        "=> Add(ReduceMax(x, axes=(0,), keepdims=1), ReduceMax(y, axes=(0,), keepdims=1)) "
        "where shape(x) == shape(y)"
    ),
    "a maximum of integers that wrap": (
        "ReduceMax(Add(x, s), **a) => Add(ReduceMax(x, **a), s) where numel(s) == 1, dtype(x) == 'int64'"
    ),
    "a softmax of what is scaled": "Softmax(Mul(x, s), axis=k) => Softmax(x, axis=k) where numel(s) == 1",
    "a softmax of another row": "Softmax(Add(x, s), axis=k) => Softmax(x, axis=k) where shape(s) == shape(x)",
    # singular values and conversions
    "a quotient cancelled": "Div(Mul(x, y), y) => x",
    "one over one over": "Reciprocal(Reciprocal(x)) => Reciprocal(Mul(x, x))",
    "a root squared": "Sqrt(Mul(x, x)) => x",
    "a conversion there and back": "Cast(Cast(x, to='int32', **a), to='float32', **b) => x",
    "a conversion to bool": "Cast(Cast(x, to='bool', **a), to='float32', **b) => x",
    "a floor of a sum": "Floor(Add(x, y)) => Add(Floor(x), Floor(y))",
}

RIGHT = {
    "a shift moves into relu's bound": "Relu(Sub(x, y)) => Sub(Max(x, y), y)",
    "leaky relus of slopes that are not negative": (
        "LeakyRelu(LeakyRelu(x, alpha=a), alpha=b) => LeakyRelu(x, alpha=a*b) where a >= 0, b >= 0"
    ),
    "a leaky relu of a slope below one": "LeakyRelu(x, alpha=a) => Max(x, Mul(x, a)) where a <= 1",
    "relu twice": "Relu(Relu(x)) => Relu(x)",
    "clip of relu": "Clip(x, 0, u) => Min(Relu(x), u) where value(u) > 0",
    "a maximum of negatives is a minimum": (
        "ReduceMax(Neg(x), axes=a, keepdims=1) => Neg(ReduceMin(x, axes=a, keepdims=1))"
    ),
    "a minimum of differences from one number": (
        "ReduceMin(Sub(s, x), axes=(0,), keepdims=0) => Sub(s, ReduceMax(x, axes=(0,), keepdims=0)) "
        "where rank(s) == 0"
    ),
    "a maximum of two and one": (
        "ReduceMax(Sub(Add(x, s), y), axes=(0,), keepdims=1) "
        "=> Sub(s, ReduceMin(Sub(y, x), axes=(0,), keepdims=1)) "
        "where numel(s) == 1, shape(x) == shape(y)"
    ),
    "a row is taken from a softmax": (
        "Softmax(Sub(x, s), axis=k) => Softmax(x, axis=k) where rank(s) == rank(x), dim(s, k) == 1"
    ),
    "a positive quotient cancelled": "Div(Mul(x, s), s) => x where positive(s)",
    "the inverse permutation": (
        "Transpose(Transpose(x, perm=p), perm=q) => x where all(q[p[i]] == i for i in range(rank(x)))"
    ),
    "pads one after the other": (
        "Pad(Pad(x, pads=p), pads=q) => Pad(x, pads=tuple(m + n for m, n in zip(p, q))) "
        "where all(n >= 0 for n in p), all(n >= 0 for n in q)"
    ),
    "a matrix product of a sum": (
        "MatMul(Add(x, y), z) => Add(MatMul(x, z), MatMul(y, z)) where shape(x) == shape(y)"
    ),
    "two steps of a sum": (
        "ReduceSum(ReduceSum(x, axes=(1,), keepdims=1), axes=(0,), keepdims=1) "
        "=> ReduceSum(x, axes=(0, 1), keepdims=1)"
    ),
    "a transposed sum": (
        "ReduceSum(Transpose(x, perm=(1, 0)), axes=(0,), keepdims=0) => ReduceSum(x, axes=(1,), keepdims=0)"
    ),
    "where both are one": "Where(c, x, x) => x where rank(c) == 0",
    "all of it": "Slice(x, starts=(0,), ends=e, axes=(0,), steps=(1,)) => x where e[0] >= dim(x,0)",
    "a pad that is cut off": (
        "Slice(Pad(x, pads=p, value=v), starts=s, ends=e, axes=(0,), steps=(1,)) => x "
        "where len(p) == 2, s == (p[0],), e == (dim(x,0) + p[0],), p[0] >= 0, p[1] >= 0"
    ),
    "flattened twice": "Flatten(Flatten(x, axis=1), axis=1) => Flatten(x, axis=1)",
}


def proof_of(text: str) -> Proved | Unproved:
    every = any(word in text for word in ("Where", "Not(", "CastLike", "dtype("))
    (rule,) = parse_rule(f"tried [any]: {text}" if every else f"tried: {text}")
    return prove(rule, 20_000)


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_no_wrong_rule_is_proved(text: str) -> None:
    found = proof_of(text)
    assert isinstance(found, Unproved), f"{text} is {found}"
    assert found.reason not in (NO_CASES, "the time is over")


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_right_rules_are_proved(text: str) -> None:
    found = proof_of(text)
    assert isinstance(found, Proved), found.reason


# proved in a fifth of a second or so; bench/proofs.py proves all
SAMPLE = [
    *("clip-to-hardsigmoid", "relu-positive-scale", "leakyrelu-positive-scale", "hardsigmoid-of-affine"),
    *("factor-one", "shift-of-scaled", "div-constants", "cast-to-own-type"),
    *("outer-product", "merge-plain-convs-of-one-kernel-shape", "shift-after-convtranspose-without-b"),
    *("matmul-by-identity", "enlarge-nothing", "squeeze-as-reshape", "mean-of-pointwise-conv-without-b"),
]


@pytest.mark.parametrize("name", SAMPLE)
def test_rules_of_the_library_are_proved(name: str) -> None:
    found = prove(LIBRARY[name])
    assert isinstance(found, Proved), found.reason
    assert found.by in ("algebra", "z3") and "all sizes" in found.covers


def test_evidence_states_the_claim() -> None:
    assert str(prove(LIBRARY["factor-one"])) == "proved(algebra, all sizes, all ranks)"
    assert str(prove(LIBRARY["relu-positive-scale"])) == "proved(z3, all reals, all sizes, all ranks)"
    (turned,) = parse_rule("law: Transpose(Transpose(x, perm=(1, 0)), perm=(1, 0)) => x")
    assert str(prove(turned)) == "proved(algebra, all sizes, ranks 2-2)"


@pytest.mark.parametrize(("steps", "ranks"), [(10, None), (60, "2-2"), (200, "2-3"), (900, "2-5")])
def test_a_proof_ends_after_steps_wherever_it_runs(steps: int, ranks: str | None) -> None:
    """The evidence names the ranks that are done, whatever was cached and however long it took."""
    ranks_of = ", ".join(f"rank({name}) >= 2" for name in "xyz")
    (rule,) = parse_rule(f"law: MatMul(x, MatMul(y, z)) => MatMul(MatMul(x, y), z) where {ranks_of}")
    for _ in range(2):
        found = prove(rule, steps)
        if ranks is None:
            assert isinstance(found, Unproved) and "steps" in found.reason
        else:
            assert isinstance(found, Proved) and f"ranks {ranks}" in found.covers


def symbols(*names: str) -> list[Any]:
    return [polynomial(Symbol(name, 1)) for name in names]


def test_an_assumption_holds_by_the_form_of_sizes() -> None:
    """Every replacement makes the answer yes, and reaches every value for which it is."""
    a, b, c, d = symbols("a", "b", "c", "d")
    p = polynomial(Symbol("p", NO_LOWER_BOUND))
    questions = [
        ("zero", a - b), ("zero", a - 1), ("zero", a - b - c), ("zero", 2 * a - b), ("zero", a * b - c * d),
        ("zero", a % b), ("zero", (2 * a) % 3), ("zero", a % 2 - 1), ("zero", (a - b) // c),
        ("zero", a // b - a),
        ("nonnegative", a - b), ("nonnegative", p), ("nonnegative", -p - 1), ("nonnegative", p - 1),
    ]  # fmt: skip
    for kind, size in questions:
        found = solve_question(Question(kind, size))
        assert found, f"{size}"
        reached = set()
        for values in found:
            known = substitute(size, values)
            assert (known == 0) if kind == "zero" else is_nonnegative(known), f"{size}: {values}"
            new = {x for v in values.values() for x in atoms(v)}
            free = sorted(new | (atoms(size) - values.keys()), key=str)
            for point in product(range(-3, 7) if len(free) < 4 else range(4), repeat=len(free)):
                at = dict(zip(free, point, strict=True))
                bound = [(x, n) for x, n in at.items() if isinstance(x, Symbol)]
                if all(low(x) <= n <= high(x, at) for x, n in bound):
                    inside = [x for x in atoms(size) if isinstance(x, Symbol)]
                    whole = {x: evaluate(substitute(x, values), at.__getitem__) for x in inside}
                    reached.add(tuple(whole[x] for x in sorted(whole, key=str)))
        own = sorted((x for x in atoms(size) if isinstance(x, Symbol)), key=str)
        for point in product(range(-3, 4), repeat=len(own)):
            at = dict(zip(own, point, strict=True))
            if all(low(x) <= n for x, n in at.items()):
                value = evaluate(size, at.__getitem__)
                if value == 0 or kind == "nonnegative" and value > 0:
                    assert point in reached, f"{size} at {at}"


def low(x: Symbol) -> int:
    return max(x.low, -3)


def high(x: Symbol, at: dict[Any, int]) -> int:
    return 7 if x.high is None else int(evaluate(x.high, lambda a: at.get(a, 0)))


SIZES = [
    (op, name)
    for op in registry.values()
    for name in op.attributes
    if examples_of(op) and domain_of(op, name).kind == "integers"
]


@pytest.mark.parametrize(("op", "name"), SIZES, ids=[f"{op.name}-{name}" for op, name in SIZES])
def test_negative_numbers_below_a_lower_bound_are_refused(op: Op, name: str) -> None:
    """Whatever the other numbers are: drawn, not assumed."""
    rng = Random(3)
    for kinds, attrs in examples_of(op):
        value = dict(attrs)[name]
        for _ in range(60 if isinstance(value, tuple) else 0):
            tried = [n + rng.choice([0, 0, 1, 2, 7]) for n in value]
            for place in rng.sample(range(len(value)), rng.randint(1, len(value))) if value else ():
                tried[place] = -rng.randint(1, 5)
            if len(tried) > 1 and rng.random() < 0.5:  # what is asked of their sum holds
                tried[-1] += sum(value) - sum(tried)
            if min(tried, default=0) >= 0 or lower_bound(op, name) == NO_LOWER_BOUND:
                continue
            with pytest.raises((Untypable, *UNKNOWN_VALUE_ERRORS)):
                op.scopes(kinds, op.canonical(kinds, {**dict(attrs), name: tuple(tried)}))


def test_which_numbers_may_be_negative() -> None:
    bounds = {(op.name, name): lower_bound(op, name) for op, name in SIZES}
    assert bounds["Split", "split"] == 0 and bounds["MaxPool", "pads"] == 0
    assert bounds["Pad", "pads"] == NO_LOWER_BOUND and bounds["Slice", "starts"] == NO_LOWER_BOUND
    assert bounds["Reshape", "shape"] == NO_LOWER_BOUND  # -1 is what is left


def test_four_variables_of_two_element_types_are_tried_in_all_combinations() -> None:
    """Where the rule asks for the type of one, the others may have any."""
    (rule,) = (rule for rule in library() if rule.name == "gemm-of-scaled")
    assert len(rule.variables) == 4 and isinstance(prove(rule), Proved)
