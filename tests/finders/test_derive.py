"""Derivations: every rule keeps what an expression is, and what the papers found is found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product as pairs_of
from math import inf, prod
from random import Random
from typing import Any

import numpy as np
import pytest
from derivation_cases import CASES, call, convolution, derived, made_by, part_of, searched, tensor
from hypothesis import given
from hypothesis import strategies as st
from random_scopes import Everything
from small_programs import values_of

from tensaurus.app.zoo import cases
from tensaurus.app.zoo.builder import Builder
from tensaurus.app.zoo.longformer import sliding_window_attention
from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.expr.analysis import fit_index_map
from tensaurus.expr.analysis.fit_index_map import evaluate_at, fit_index, sample_places
from tensaurus.expr.analysis.reshape_map import is_reshape
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.evaluate.prime_field import PrimeField
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Body, Call, Const, Read, Reduce, Scope, Select, Tensor, axis
from tensaurus.expr.ir.walk import reads, scopes, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.affine import affine_coefficients
from tensaurus.expr.sizes.mixed_radix import unravel_index
from tensaurus.expr.sizes.size import interval, polynomial
from tensaurus.finders.derive import (
    merge_traversals,
    split_expressions,
    substitute_variables,
    summation_rules,
    tighten_boundary,
)
from tensaurus.finders.derive.derivation_cache import DerivationCache
from tensaurus.finders.derive.derivation_equation import STEP_EVIDENCE, make_equation
from tensaurus.finders.derive.derivation_finder import Derive
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search
from tensaurus.finders.derive.derivation_state import MIN_INTENSITY, intensity
from tensaurus.finders.derive.derivation_text import format_derivations
from tensaurus.finders.derive.flatten_digits import flatten_dimensions
from tensaurus.finders.derive.fold_move_chains import fold_moves
from tensaurus.finders.derive.linear_regions import product_piece
from tensaurus.finders.derive.move_finder import MoveFinder
from tensaurus.finders.derive.reorder_operands import reordered
from tensaurus.finders.derive.rewrite_step import Rule, Step
from tensaurus.graph.analysis.attribute_roles import Role
from tensaurus.graph.analysis.matchable_operators import matchable_operators
from tensaurus.graph.analysis.operator_product import Window
from tensaurus.graph.ir.node import Node, apply, constant
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import registry
from tensaurus.rules.language.equation import Equation
from tensaurus.rules.language.evidence import Derived
from tensaurus.runtimes.price.operation_counts import number_of, scopes_of

RULES: dict[str, Rule] = {
    "split": summation_rules.split,
    "sum divided": summation_rules.divided,
    "sum reindexed": summation_rules.reindexed,
    "collapsed": summation_rules.collapsed,
    "sheared": substitute_variables.sheared,
    "traversal divided": substitute_variables.divided,
    "merged": merge_traversals.merged,
    "tightened": tighten_boundary.tightened,
    "traversal split": split_expressions.split,
    "read through": lambda scope: iter([Step("read through", "", merge_traversals.read_through(scope))]),
}


class Sums:
    """Random sums of products with strides, dilations, edges, guards, remainders and nested scopes."""

    def __init__(self, seed: int):
        self.rng = Random(seed)
        self.count = 0

    def scope(self, depth: int = 2) -> Scope:
        rng = self.rng
        axes = tuple(axis(rng.choice((1, 2, 3, 4, 5)), "i") for _ in range(rng.randint(1, 3)))
        taps = tuple(axis(rng.choice((1, 2, 2, 3, 4)), "r") for _ in range(rng.randint(0, 3)))
        body: Body = self.read(axes + taps, depth)
        for _ in range(rng.choice((0, 1, 1, 2))):
            body = Call("mul", (body, self.read(axes + taps, depth)))
        if rng.random() < 0.4:
            body = Select((self.guard(axes + taps),), body, Const(0))
        monoid = rng.choice(("sum", "sum", "sum", "sum", "max"))
        if taps:
            body = Reduce(monoid, taps, body)
        if rng.random() < 0.3:
            body = Call(rng.choice(("add", "mul", "max")), (body, self.read(axes, 0)))
        return Scope(axes, body)

    def guard(self, axes: Sequence[Any]) -> Any:
        rng = self.rng
        form = self.form(axes)
        if rng.random() < 0.5:
            step = rng.choice((2, 3))
            return (form // step) * step - form  # no remainder
        return form + rng.randint(-3, 1)

    def form(self, axes: Sequence[Any]) -> Any:
        rng = self.rng
        chosen = rng.sample(list(axes), min(len(axes), rng.choice((1, 1, 2, 2, 3))))
        form = polynomial(rng.randint(-2, 1))
        for a in chosen:
            form = form + polynomial(a) * rng.choice((1, 1, 1, 2, 3, -1))
        return form

    def read(self, axes: Sequence[Any], depth: int) -> Read:
        rng = self.rng
        indices, shape = [], []
        for _ in range(rng.randint(1, 3)):
            index: Any = self.form(axes) if rng.random() < 0.6 else polynomial(rng.choice(axes))
            if rng.random() < 0.15:
                index = index // 2
            low, high = interval(index)
            assert isinstance(low, int) and isinstance(high, int)
            indices.append(index - min(low, rng.choice((0, 0, low))))
            shape.append(max(1, high - low + rng.choice((-1, 0, 1, 1))))
        inside = all(
            interval(i)[0] >= 0 and interval(i)[1] < n  # type: ignore[operator]
            for i, n in zip(indices, shape, strict=True)
        )
        outside = None if inside else Const(0)
        if depth and rng.random() < 0.4:
            inner = self.scope(depth - 1)
            places = [polynomial(rng.choice(axes)) + rng.randint(-1, 1) for _ in inner.shape]
            return Read(inner, tuple(places), Const(rng.choice((0, 0, 1))))
        self.count += 1
        return Read(Tensor(f"x{self.count}", tuple(shape)), tuple(indices), outside)




def equal(first: Scope, second: Scope, seed: int = 0) -> bool:
    field = PrimeField(seed)
    given = values_of(first, field, seed)
    return bool(np.array_equal(interpret(first, given, field), interpret(second, given, field)))


@pytest.mark.nightly(every=4)
@pytest.mark.parametrize("name", RULES)
def test_every_rule_keeps_the_values_of_sums_of_products(name: str) -> None:
    """Exactly, over GF(p); and the rule applies often enough to say so."""
    applied = 0
    for seed in range(600):
        if applied > 150:
            break
        whole = intern_scope(Sums(seed).scope())
        for stage in scopes(whole):
            for step in RULES[name](stage):
                applied += 1
                assert step.scope.shape == stage.shape
                assert equal(stage, step.scope, seed), (seed, step.rule, step.where)
    assert applied > 20


@pytest.mark.parametrize("name", RULES)
def test_every_rule_keeps_the_values_of_any_expression(name: str) -> None:
    """Literal tables, indices that are read, casts, several types: what a rule does not know it leaves."""
    for seed in range(60):
        whole = intern_scope(Everything(seed, division=False).scope(3))
        field, rng = Reals(), np.random.default_rng(seed)
        given = {
            x: rng.integers(0, 3, x.shape).astype("int64" if "int" in x.dtype else float)  # type: ignore[arg-type]
            for x in tensors(whole)
        }
        for stage in scopes(whole):
            for step in RULES[name](stage):
                found, wanted = (interpret(s, given, field) for s in (step.scope, stage))
                np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------------- what is found


@pytest.mark.nightly(every=8)
@pytest.mark.parametrize("name", CASES)
def test_what_the_paper_found_is_found(name: str) -> None:
    """At random sizes, pads, strides and dilations; what is found is the operator, over GF(p)."""
    build, claim, search = CASES[name]
    part = part_of(build(len(name)))
    leaves = tuple(part.names.values())
    found = searched(part, replace(search))
    matching = [one for one in found if claim(one, leaves)]
    assert matching, str(part.forms)
    made = make_equation(part.forms, leaves, matching[0])
    assert made is not None and isinstance(made.evidence, Derived)
    assert len(made.right) == len(part.forms)
    assert refute_equation(made) is None
    lines = list(format_derivations(part.forms, matching[:1], search))
    assert any("its expression" in line for line in lines)
    assert len(lines) > 2 * len(made.evidence.steps)


def test_wrong_steps_are_refuted() -> None:
    """A derivation is as right as its steps: one with another offset is refuted, by itself and as a whole."""
    node = convolution(3, (3, 3))
    leaves = tuple(arg for arg in node.args if arg is not None)
    one = next(d for d in derived(node, leaves, Search(max_states=1, min_intensity=2.0)) if made_by(d))
    body = one.state.roots[0].body
    assert isinstance(body, Read)
    last = len(body.indices) - 1
    indices = (*body.indices[:last], body.indices[last] - 1)
    moved = Scope(one.state.roots[0].axes, Read(body.source, indices, Const(0)))
    wrong = DerivedProgram(replace(one.state, roots=(intern_scope(moved),)), one.seconds)
    made = make_equation((node,), leaves, wrong)
    assert made is not None and refute_equation(made) is not None


# --------------------------------------------------------------------------------- operators


def test_what_operators_are_is_read_from_their_declarations() -> None:
    """Which iterators there are, and what each number of the attributes decides."""
    found = {(str(o), len(o.windows), frozenset(o.iterators)): o for o in matchable_operators()}
    m, n, k, b = (True, False, True), (False, True, True), (True, True, False), (True, True, True)
    assert {("MatMul", 0, frozenset({m, n, k})), ("MatMul", 0, frozenset({b, m, n, k}))} <= found.keys()
    for rank in (1, 2, 3):
        conv = found["Conv", rank, frozenset({m, n, k})]
        roles = {(name, place): (role.quantity, role.target) for (name, place), role in conv.roles.items()}
        for place, window in enumerate(conv.windows):
            assert roles["strides", place] == ("stride", window)
            assert roles["dilations", place] == ("dilation", window)
            assert roles["pads", place] == ("begin", window)
            assert roles["pads", rank + place] == ("end", window)
        pool = found["AveragePool", rank, frozenset({m})]
        roles = {(name, place): (role.quantity, role.target) for (name, place), role in pool.roles.items()}
        for place, window in enumerate(pool.windows):
            assert roles["strides", place] == ("stride", window)
            assert roles["kernel_shape", place] == ("extent", window.tap)
            assert roles["pads", place] == ("begin", window)
            assert roles["pads", rank + place] == ("end", window)
    # no CumSum, whose windows are as large as its input
    assert {str(o) for o in matchable_operators() if o.is_unary} == {"AveragePool"}
    grouped = found["Conv", 2, frozenset({b, m, n, k})]
    role = grouped.roles["group", None]
    assert role.quantity == "extent" and role.target == grouped.iterators[b]
    assert all(isinstance(d, Window) for d in grouped.data[2:])


def test_numbers_that_no_attribute_decides() -> None:
    """A window in steps of two is none of an operator whose steps are one."""
    conv = next(o for o in matchable_operators() if str(o) == "Conv" and len(o.windows) == 1)
    steps = {place: role for place, role in conv.roles.items() if role.quantity != "stride"}
    plain = replace(conv, roles=steps, attrs={**conv.attrs, "strides": (1,)})
    (window,) = conv.windows
    numbers = {Role(q, window): n for q, n in (("stride", 2), ("dilation", 1), ("begin", 0), ("end", 0))}
    assert conv.attributes(numbers) is not None and plain.attributes(numbers) is None
    assert plain.attributes({**numbers, Role("stride", window): 1}) is not None


def test_weights_that_are_one_number() -> None:
    """They are part of the expression; others, and those of another number somewhere, are tensors."""
    x = tensor("x", 1, 4, 6, 6)
    different = np.arange(36).reshape(4, 1, 3, 3)
    for elements, one in ((np.full((4, 1, 3, 3), 0.1), True), (different, False)):
        weights = elements.astype(np.float32)
        for changed in (False, True):
            weights[-1, -1, -1, -1] += changed
            node = apply(registry["Conv"], [x, constant(weights)], {"group": 4})
            found = product_piece(node)
            assert found is not None and (found.leaves == (x,)) == (one and not changed)


@pytest.mark.parametrize("weights", [1.0, 0.1, -2.5])
def test_what_weights_of_one_number_are_derived_to(weights: float) -> None:
    """Also where such weights are read beyond their edge, and where an operator multiplies its sum."""
    x, w = tensor("x", 2, 4, 5, 6), constant(np.full((4, 3, 3, 3), weights, np.float32))
    attrs = {"strides": (2, 1), "pads": (1, 0, 1, 1)}
    transposed = apply(registry["ConvTranspose"], [x, w], attrs)
    wide = constant(np.full((8, 5), weights, np.float32))
    scaled = apply(registry["Gemm"], [tensor("y", 6, 8), wide], {"alpha": 0.5})
    small = constant(np.full((3, 4, 2, 2), weights, np.float32))
    padded = apply(registry["Pad"], [small], {"pads": (0, 0, 1, 0, 0, 0, 0, 1)})
    edged = apply(registry["Conv"], [x, padded])
    for node in (transposed, scaled, edged):
        part = part_of((node,))
        found = searched(part, Search(max_states=4, min_intensity=0.5))
        laws = [make_equation(part.forms, tuple(part.names.values()), one) for one in found[:6]]
        made = [law for law in laws if law is not None]
        assert made and all(refute_equation(law) is None for law in made)


def strided_reads(seed: int) -> Scope:
    """Reads of one or two tensors whose indices are steps of one number beside smaller ones, or nearly."""
    rng = Random(seed)
    step = rng.choice((2, 3, 4))
    h, p = axis(rng.randint(1, 4), "h"), axis(rng.choice((step, step, step - 1, step + 1)), "p")
    j, r = axis(rng.randint(1, 3), "j"), axis(rng.randint(1, 3), "r")
    axes = [h, p, j]
    rng.shuffle(axes)
    factors = []
    for name in ("x", "y")[: rng.randint(1, 2)]:
        index: Any = polynomial(h) * step + polynomial(p) + rng.choice((-step, -1, 0, 1, step))
        index = index + polynomial(j) * rng.choice((0, 0, step, 2 * step, 1))
        low, high = interval(index)
        extent = max(1, high + 1 + rng.choice((-2, -1, 0, 0, 1)))  # type: ignore[operator]
        inside = low >= 0 and high < extent  # type: ignore[operator]
        outside = None if inside and rng.random() < 0.5 else Const(rng.choice((0, 0, 2)))
        factors.append(Read(Tensor(name, (extent, r.extent)), (index, polynomial(r)), outside))
    body: Body = Call("mul", tuple(factors)) if len(factors) == 2 else factors[0]
    return intern_scope(Scope(tuple(axes), Reduce("sum", (r,), body)))


def test_operands_in_another_order() -> None:
    """What is read of them is what was read; nothing is read in steps of that number any more."""
    found = 0
    for seed in range(500):
        scope = strided_reads(seed)
        made = reordered(scope)
        if made is None:
            continue
        found += 1
        field = PrimeField(seed)
        given = values_of(scope, field, seed)
        arranged = {x: interpret(layout, given, field) for x, layout in made.operands.items()}
        order = [scope.axes.index(a) for a in made.scope.axes]
        assert made.operands
        for read in reads(made.scope):
            if read.source in made.operands:  # the remainder, the quotient, and what is summed over
                quotient = affine_coefficients(read.indices[1], made.scope.axes)
                assert quotient is not None and set(quotient[0].values()) <= {1, 2}, seed
        wanted = interpret(scope, given, field).transpose(order)
        assert np.array_equal(interpret(made.scope, {**given, **arranged}, field), wanted), seed
    assert found > 100


# --------------------------------------------------------------------------------- chains of moves


def attention(width: int, dilation: int, blocks: int, heads: int = 2, size: int = 3) -> Program:
    """Longformer's, in the chunked form of its authors."""
    b = Builder("attention")
    length = width * dilation * blocks
    y = sliding_window_attention(
        b, 1, width=width, dilation=dilation, heads=heads, length=length, size=size
    )
    return import_model(b.model(y), {}, "attention")


@pytest.mark.parametrize(("width", "dilation", "blocks"), [(2, 1, 2), (3, 2, 4), (4, 1, 3), (2, 3, 5)])
def test_chunks_become_banded_products(width: int, dilation: int, blocks: int) -> None:
    """Slices, concatenations, masks and skewed reshapes are one index form, whatever the chunks are."""
    program = attention(width, dilation, blocks)
    products = [node for node in program.active if str(node.op) == "MatMul"]
    found = [(MoveFinder(program).piece_around(product), product) for product in products]
    scopes_found = []
    for piece, product in found:
        assert piece is not None
        made = fold_moves(piece, product)
        assert made is not None
        law = Equation("traced", "", (piece.root,), (made,), piece.leaves, STEP_EVIDENCE)
        assert refute_equation(law) is None
        scopes_found.append(made.attribute("scope"))
        assert len(scopes(scopes_found[-1])) == 1
    scores, mixed = scopes_found
    assert isinstance(scores.body, Select) and scores.body.other == Const(-10000)
    assert scores.shape[-1] == 2 * width + 1
    # the sum runs over chunks; over the band it is shorter, and products that are masked are gone
    band = [
        step for step in summation_rules.reindexed(mixed) if step.scope.body.axes[0].extent == 2 * width + 1
    ]
    assert band and equal(mixed, band[0].scope)


@pytest.mark.parametrize("seed", range(6))
def test_ends_of_bands_of_which_a_sample_is_followed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard holds up to the last element, though no place that was drawn is next to it."""
    monkeypatch.setattr(fit_index_map, "MAX_PLACES", 64)
    rng = Random(seed)
    width, dilation = rng.randint(2, 9), rng.randint(1, 4)
    length = rng.randint(2 * width * dilation, 40 * width * dilation)
    b = Builder("band")
    made = b.model(cases.g2bmm(b, 1, heads=2, length=length, width=width, dilation=dilation))
    program = import_model(made, {}, "band")
    (product,) = (node for node in program.active if str(node.op) == "MatMul")
    piece = MoveFinder(program).piece_around(product)
    assert piece is not None
    form = fold_moves(piece, product)
    assert form is not None
    law = Equation("traced", "", (piece.root,), (form,), piece.leaves, STEP_EVIDENCE)
    assert refute_equation(law) is None


def test_what_computes_on_the_way_is_not_followed() -> None:
    x, w = tensor("x", 2, 8, 4), tensor("w", 2, 4, 8)
    twice = apply(registry["Add"], [x, x])
    product = apply(registry["MatMul"], [twice, apply(registry["Transpose"], [w], {"perm": (0, 1, 2)})])
    clipped = apply(registry["Relu"], [product])
    program = Program((x, w), (("y", clipped),))
    alone = MoveFinder(program).piece_around(product)
    assert alone is None or alone.root is product
    both = Program((x, w), (("y", clipped), ("z", apply(registry["Reshape"], [product], {"shape": (16, 8)}))))
    piece = MoveFinder(both).piece_around(product)
    assert piece is None or piece.root is product  # it is read as it is, and moved


def test_a_move_that_no_form_says_is_left() -> None:
    """A permutation of no structure; and one with it."""
    x, w = tensor("x", 6, 4), tensor("w", 4, 5)
    product = apply(registry["MatMul"], [x, w])
    for order, found in (([3, 1, 5, 0, 2, 4], False), ([5, 4, 3, 2, 1, 0], True), ([0, 2, 4, 1, 3, 5], True)):
        rows = apply(registry["Gather"], [product, constant(np.array(order))], {"axis": 0})
        program = Program((x, w), (("y", rows),))
        piece = MoveFinder(program).piece_around(product)
        assert piece is not None and piece.root is rows
        made = fold_moves(piece, product)
        assert (made is not None) is found
        if made is not None:
            law = Equation("traced", "", (rows,), (made,), piece.leaves, STEP_EVIDENCE)
            assert refute_equation(law) is None


@given(st.integers(0, 10**6))
def test_forms_are_found_by_their_values(seed: int) -> None:
    rng = Random(seed)
    axes = tuple(axis(rng.randint(1, 9), "i") for _ in range(rng.randint(1, 3)))
    form: Any = polynomial(rng.randint(-5, 5))
    for a in axes:
        step = rng.choice((1, 2, 3))
        form = form + (polynomial(a) // step) * rng.randint(-4, 4)
        form = form + (polynomial(a) % step) * rng.randint(-4, 4)
    low = rng.choice((-(10**6), -2, 0))

    def function(places: Sequence[Any]) -> tuple[Any, Any]:
        values = evaluate_at(form, axes, places)
        return values, values >= low

    found = fit_index(function, axes)
    places = sample_places([a.extent for a in axes])  # type: ignore[misc]
    values, known = function(places)
    if not known.any():
        assert found is None
    elif found is not None:
        assert (evaluate_at(found, axes, places) == values)[known].all()
    else:
        assert not known.all()  # what is hidden may be what tells


# --------------------------------------------------------------------------------- reshapes


def reshaped_reads(seed: int) -> Scope:
    """Of one tensor, whose neighbouring dimensions are read by digits of a number, or of one beside it."""
    rng = Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(2, 4)))
    first = rng.randrange(len(shape) - 1)
    run = shape[first : first + rng.choice((2, 2, 3))]
    k = axis(rng.choice((prod(run), prod(run), prod(run) + 2)), "k")
    others = [axis(n, "j") for n in (*shape[:first], *shape[first + len(run) :])]
    number = polynomial(k) + rng.choice((0, 0, 0, -1, 1))
    indices = list(map(polynomial, others))
    indices[first:first] = unravel_index(number, run)
    axes = [k, *others]
    rng.shuffle(axes)
    outside = None if k.extent == prod(run) and number == polynomial(k) else Const(rng.choice((0, 5)))
    return intern_scope(Scope(tuple(axes), Read(Tensor("x", shape), tuple(indices), outside)))


def test_digits_of_one_number_become_one_dimension() -> None:
    """Where no quotient is left, and nothing lies beyond an edge."""
    fewer = 0
    for seed in range(400):
        scope = reshaped_reads(seed)
        plain, made = flatten_dimensions(scope)
        field = PrimeField(seed)
        given = values_of(scope, field, seed)
        changed = {made.get(x, x): given[x].reshape(made.get(x, x).shape) for x in given}  # type: ignore[arg-type]
        assert np.array_equal(interpret(scope, given, field), interpret(plain, changed, field)), seed
        fewer += bool(made)
        assert not made or "//" not in show(plain)
    assert fewer > 50


def test_what_renumbers_is_a_reshape() -> None:
    """By values: it says so of no other scope, and of every read in the order of numbers."""
    said = 0
    for seed in range(600):
        scope = reshaped_reads(seed)
        (x,) = tensors(scope)
        numbers = np.arange(prod(map(number_of, x.shape))).reshape(x.shape)  # type: ignore[arg-type]
        kept = number_of(prod(scope.shape)) == numbers.size and np.array_equal(
            interpret(scope, {x: numbers.astype(float)}, Reals()).ravel(), numbers.ravel()
        )
        assert kept or not is_reshape(scope), show(scope)
        said += is_reshape(scope)
    assert said > 50
    for n in (0, 1, 3):
        a, b = axis(2, "a"), axis(n, "b")
        scope = Scope((a, b), Read(Tensor("x", (2 * n,)), (n * polynomial(a) + polynomial(b),)))
        assert is_reshape(scope)
        turned = Scope((b, a), Read(Tensor("x", (2, n)), (polynomial(a), polynomial(b))))
        assert is_reshape(turned) is (n == 1)


# --------------------------------------------------------------------------------- in the e-graph


def test_the_finder_proposes_what_should_be_faster_than_what_stands_there() -> None:
    """A strided transposed convolution, which runtimes are slow at; not a convolution at the peak."""
    slow = call("ConvTranspose", (1, 32, 14, 14), (32, 32, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    fast = call("Conv", (1, 32, 28, 28), (32, 32, 3, 3), pads=(1, 1, 1, 1))
    cases = ((slow, 1e-2, True), (fast, 1e-6, False), (slow, None, False))
    for (node, taken, expected), kernels in pairs_of(cases, (True, False)):
        cache = DerivationCache(allows_kernels=kernels)
        finder = Derive(lambda node, taken=taken: taken, max_states=30, cache=cache)  # type: ignore[misc]
        graph = EGraph()
        root = graph.insert_term(node)
        graph.rebuild()
        graph.programs = [Program((*node.args,), (("y", node),))]  # type: ignore[arg-type]
        merged = find_all(graph, [finder], 1000)
        assert (merged > 0) is expected
        if expected:
            assert len(graph.members[graph.find(root)]) > 1
            proposals = finder(graph, 1000)
            others = [n for proposal in proposals for n in topological_order(proposal.equation.right)]
            eops = [n for n in others if n.op is registry["eop"]]
            heavy = [n for n in eops if intensity(scopes_of(n)[0]) >= MIN_INTENSITY]
            assert others and (kernels or not heavy)


def test_a_search_that_time_cuts_goes_on_where_it_was() -> None:
    slow = call("ConvTranspose", (1, 32, 14, 14), (32, 32, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    at_once, cut = (Derive(lambda node: 1e-2, max_states=30, budget=budget) for budget in (inf, 0.0))
    found = list[set[Equation]]()
    for finder in (at_once, cut):
        graph = EGraph()
        graph.insert_term(slow)
        graph.rebuild()
        graph.programs = [Program((*slow.args,), (("y", slow),))]  # type: ignore[arg-type]
        rounds = 0
        first = list(finder(graph, 1000))
        assert bool(first) is (finder is at_once)
        while finder.grant_time(1.0) and rounds < 60:
            list(finder(graph, 1000))
            rounds += 1
        assert bool(rounds) is (finder is cut)
        found.append({proposal.equation for proposal in finder(graph, 1000)})
    assert found[0] == found[1] and found[0]


def test_what_was_shown_before_it_was_measured_is_looked_at_again() -> None:
    slow = call("ConvTranspose", (1, 32, 14, 14), (32, 32, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    after = apply(registry["Relu"], [slow])
    known: dict[Node, float] = {}
    finder = Derive(known.get, max_states=30)
    graph = EGraph()
    root = graph.insert_term(slow)
    graph.rebuild()
    graph.programs = [Program((*slow.args,), (("y", slow),))]  # type: ignore[arg-type]
    assert find_all(graph, [finder], 1000) == 0
    known[slow] = 1e-2
    graph.programs = [Program((slow,), (("y", after),))]
    assert find_all(graph, [finder], 1000) > 0
    assert len(graph.members[graph.find(root)]) > 1


def test_a_part_takes_in_what_only_moves_elements() -> None:
    x, w = tensor("x", 1, 32, 8, 8), tensor("w", 64, 32)
    flat = apply(registry["Reshape"], [x], {"shape": (1, 32, 64)})
    turned = apply(registry["Transpose"], [flat], {"perm": (0, 2, 1)})
    other = apply(registry["Transpose"], [w], {"perm": (1, 0)})
    product = apply(registry["MatMul"], [turned, other])
    found = product_piece(product)
    assert found is not None and set(found.leaves) == {x, w}
    assert product_piece(turned) is None
