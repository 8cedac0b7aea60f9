"""Derivations of several expressions at once: what reads one tensor becomes one operator, and is right."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from derivation_cases import call, derived, siblings, tensor
from small_programs import values_of

from tensaurus.check.program.replay import refute_equation
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.expr.evaluate.interpret import interpret
from tensaurus.expr.evaluate.prime_field import PrimeField
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scope import Call, Const, Read, Reduce, Scope, Select, Tensor, axis, where
from tensaurus.expr.ir.walk import scopes
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import atoms, interval, polynomial
from tensaurus.finders.derive.derivation_equation import make_equation
from tensaurus.finders.derive.derivation_finder import Derive
from tensaurus.finders.derive.derivation_search import DerivedProgram, Search, initial_expressions
from tensaurus.finders.derive.joint_search import search_region
from tensaurus.finders.derive.linear_regions import LinearRegion, find_linear_regions
from tensaurus.finders.derive.merge_expressions import JOINED, joined
from tensaurus.finders.derive.merge_traversals import read_through
from tensaurus.finders.derive.rewrite_step import replace_scopes
from tensaurus.finders.derive.split_expressions import split
from tensaurus.graph.ir.node import apply, constant
from tensaurus.graph.ir.program import Program
from tensaurus.ops import registry

# --------------------------------------------------------------------------------- the rule


def sums_of_one(seed: int) -> list[Scope]:
    """Sums of products of one tensor, with windows, strides, edges, and factors and guards of their own."""
    rng = Random(seed)
    size, channels = rng.choice((5, 6, 9)), rng.choice((1, 2, 3))
    stride, dilation, batch = rng.choice((1, 1, 2, -1)), rng.choice((1, 1, 2)), rng.random() < 0.3
    places = rng.choice((2, 3, 4))
    x = Tensor("x", (channels, size) if not batch else (channels, size, places))
    found = []
    for number in range(rng.choice((2, 2, 3))):
        c, h = axis(channels, "c"), axis(places, "h")
        private = [axis(rng.choice((1, 2, 3)), "f") for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        taps = rng.choice((1, 1, 2, 3))
        r = axis(taps, "r")
        offset = rng.choice((0, 0, 0, -1, 1, 2)) * (dilation if abs(stride) == 1 else 1)
        index: Any = polynomial(h) * stride + offset + (places - 1 if stride < 0 else 0)
        index = index + polynomial(r) * dilation if taps > 1 or rng.random() < 0.3 else index
        reduced = (c, r) if r in atoms(index) else (c,)
        low, high = interval(index)
        inside = low >= 0 and high < size  # type: ignore[operator]
        spots: tuple[Any, ...] = (polynomial(c), index)
        if batch:
            spots = (*spots, polynomial(h))
        data = Read(x, spots, None if inside and rng.random() < 0.5 else Const(0))
        own = (*private, *reduced, *((h,) if rng.random() < 0.2 else ()))
        weights = Read(Tensor(f"w{number}", tuple(a.extent for a in own)), tuple(map(polynomial, own)))
        axes = [h, *private]
        rng.shuffle(axes)
        body: Any = Call("mul", (data, weights) if rng.random() < 0.5 else (weights, data))
        if rng.random() < 0.2:
            body = Call("mul", (body, Read(Tensor(f"v{number}", (places,)), (polynomial(h),))))
        if rng.random() < 0.3:
            guarded = rng.choice(own)
            body = Select((polynomial(guarded) - rng.choice((0, 1)),), body, Const(0))
        found.append(intern_scope(Scope(tuple(axes), Reduce("sum", reduced, body))))
    return found


@pytest.mark.nightly
def test_what_is_merged_keeps_its_values() -> None:
    """Exactly, over GF(p); and what is merged reads one expression."""
    applied = grown = guarded = several = 0
    for seed in range(500):
        stages = sums_of_one(seed)
        field = PrimeField(seed)
        given: dict[Tensor, Any] = {}
        for stage in stages:
            given |= {x: value for x, value in values_of(stage, field, seed).items() if x not in given}
        for step in joined(stages):
            applied += 1
            assert step.rule == JOINED
            made = replace_scopes(stages, step.scopes)
            wholes = {id(new.body.source) for _, new in step.scopes if isinstance(new.body, Read)}
            assert len(step.scopes) > 1 and len(wholes) == 1
            olds = [old for old, _ in step.scopes]
            grown += len({tuple(sorted(a.extent for a in old.body.axes)) for old in olds}) > 1  # type: ignore
            guarded += any(isinstance(old.body.body, Select) for old in olds)  # type: ignore[union-attr]
            several += any(len(old.axes) > 2 for old in olds)
            for old, new in zip(stages, made, strict=True):
                assert new.shape == old.shape
                wanted = interpret(old, given, field)
                assert np.array_equal(interpret(new, given, field), wanted), (seed, step.where)
                assert np.array_equal(interpret(read_through(new), given, field), wanted), (seed, step.where)
    assert applied > 200 and min(grown, guarded, several) > 30


def test_what_reads_each_other_is_not_merged() -> None:
    """A sum of a tensor and of what is computed of it."""
    x, w = Tensor("x", (4,)), Tensor("w", (4, 4))
    c, f = axis(4, "c"), axis(4, "f")
    body = Call("mul", (Read(x, (polynomial(c),)), Read(w, (polynomial(c), polynomial(f)))))
    inner = intern_scope(Scope((f,), Reduce("sum", (c,), body)))
    d, g = axis(4, "d"), axis(4, "g")
    values = Call("mul", (Read(x, (polynomial(d),)), Read(inner, (polynomial(d),))))
    products = Call("mul", (values, Read(w, (polynomial(g), polynomial(d)))))
    outer = intern_scope(Scope((g,), Reduce("sum", (d,), products)))
    assert not list(joined([outer, inner])) and not list(joined([inner, outer]))


def test_what_reads_in_other_ways_is_not_merged() -> None:
    """Other strides, other dilations, other places, another tensor: there is no one window."""
    first = call("Conv", (1, 4, 9, 9), (3, 4, 3, 3), pads=(1, 1, 1, 1))
    others = (
        (first.args[0], {"strides": (2, 2)}),
        (first.args[0], {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
        (first.args[0], {"pads": (0, 0, 0, 0)}),
        (tensor("another", 1, 4, 9, 9), {}),
    )
    for x, changes in others:
        attrs: dict[str, Any] = {"pads": (1, 1, 1, 1), **changes}
        second = apply(registry["Conv"], [x, tensor("v", 2, 4, 3, 3)], attrs)
        leaves = tuple(dict.fromkeys((*first.args, *second.args)))
        roots, _ = initial_expressions((first, second), leaves)  # type: ignore[arg-type]
        assert not list(joined(roots))


def test_a_wrong_merge_is_refuted() -> None:
    """Results in the other order: as a whole, and by the step."""
    nodes = siblings("MatMul", [(5, 6), (6, 4), (6, 4)], [{}, {}])
    leaves = tuple(dict.fromkeys(arg for node in nodes for arg in node.args if arg is not None))
    roots, tensors = initial_expressions(nodes, leaves)
    found = Search(max_states=20, min_intensity=1.0).run(roots, tensors)
    one = next(one for one in found if JOINED in {move.rule for move in one.state.applied})
    wrong = DerivedProgram(replace(one.state, roots=one.state.roots[::-1]), one.seconds)
    law = make_equation(nodes, leaves, wrong)
    assert law is not None and refute_equation(law) is not None


# --------------------------------------------------------------------------------- splitting


def test_an_expression_is_split_where_its_weights_change() -> None:
    """The products of joined weights are those of each; the guard is gone, and so are the other's weights."""
    v, w = Tensor("v", (3, 4)), Tensor("w", (2, 4))
    f, c = axis(5, "f"), axis(4, "c")
    a, b = axis(5, "a"), axis(4, "b")
    weights = Scope((a, b), where(2 - polynomial(a), v[a, b], w[polynomial(a) - 3, b]))
    x = Read(Tensor("x", (4,)), (polynomial(c),))
    body = Call("mul", (x, Read(weights, (polynomial(f), polynomial(c)))))
    whole = intern_scope(Scope((f,), Reduce("sum", (c,), body)))
    (step,) = split(whole)
    parts = scopes(read_through(step.scope))[1:]
    assert [part.shape for part in parts] == [(3,), (2,)] or [part.shape for part in parts] == [(2,), (3,)]
    assert all(len(scopes(part)) == 1 for part in parts)
    assert list(joined(parts))  # and the other way


def test_integers_keep_their_types_where_choices_are_decided() -> None:
    """3 / 2 of int32 is no real number."""
    x, y = Tensor("x", (6,), "int32"), Tensor("y", (6,), "int32")
    a = axis(6, "a")
    half = Call("div", (where(2 - polynomial(a), x[a], 3), Const(2)))
    scope = intern_scope(Scope((a,), Call("add", (half, y[a]))))
    steps = list(split(scope))
    assert len(steps) == 1
    for step in steps:
        given = {x: np.arange(6) - 2, y: np.arange(6)}
        wanted, found = (interpret(each, given, Reals()) for each in (scope, step.scope))
        assert np.array_equal(wanted, found) and dtype_of(step.scope) == dtype_of(scope)


def test_shared_scopes_are_looked_at_once() -> None:
    """A chain of scopes that each read the one before twice is no tree."""
    x = Tensor("x", (6,))
    b = axis(6, "b")
    last = Scope((b,), where(2 - polynomial(b), x[b], 0))
    for _ in range(60):
        a = axis(6, "a")
        last = Scope((a,), Call("add", (last[a], Call("mul", (last[a], x[a])))))
    assert [step.where for step in split(last)] == [f"{last.axes[0]} at 3"]


# --------------------------------------------------------------------------------- in programs


def program(seed: int) -> Program:
    rng = np.random.default_rng(seed)
    x = tensor("x", 1, 8, 12, 12)
    kernels = [constant(rng.standard_normal((6, 8, *k)).astype(np.float32)) for k in ((1, 1), (3, 3))]
    convs = [
        apply(registry["Conv"], [x, w], {"pads": (p, p, p, p)}) for w, p in zip(kernels, (0, 1), strict=True)
    ]
    relus = [apply(registry["Relu"], [conv]) for conv in convs]
    after = apply(registry["Conv"], [relus[0], constant(np.ones((4, 6, 1, 1), np.float32))])
    return Program((x,), (("y", after), ("z", relus[1])))


def test_parts_that_read_one_tensor_are_a_part_together() -> None:
    """But none that needs another of them; and constant leaves are weights."""
    found = list(find_linear_regions(program(0)))
    joint = [part for part in found if len(part.pieces) > 1]
    assert len(found) == 4 and len(joint) == 1
    assert [kind.op.name for kind in joint[0].products] == ["Conv", "Conv"]  # type: ignore[union-attr]
    assert len(joint[0].weights) == 2 and len(joint[0].leaves) == 3
    x = tensor("x", 6, 6)
    first = apply(registry["MatMul"], [x, constant(np.ones((6, 6), np.float32))])
    second = apply(registry["MatMul"], [x, first])
    chained = list(find_linear_regions(Program((x,), (("y", second), ("z", first)))))
    assert all(len(part.pieces) == 1 for part in chained)


def test_the_finder_proposes_what_is_derived_together() -> None:
    """Two products of few columns, which are one where weights are side by side."""
    x = tensor("x", 2048, 256)
    weights = [constant(np.arange(k, 1024 + k, dtype=np.float32).reshape(256, 4)) for k in (1, 2)]
    products = [apply(registry["MatMul"], [x, w]) for w in weights]
    subject = Program((x,), (("y", products[0]), ("z", products[1])))
    finder = Derive(lambda node: 1e-2, max_states=10)
    graph = EGraph()
    for root in subject.roots:
        graph.insert_term(root)
    graph.rebuild()
    graph.programs = [subject]
    proposals = [p for p in finder(graph, 1000) if len(p.equation.left) == 2]
    assert proposals and all(refute_equation(p.equation) is None for p in proposals)
    assert find_all(graph, [finder], 2000) > 0


def test_what_is_merged_must_beat_what_each_is_derived_to() -> None:
    """A row and a column of taps: either alone is faster than both as one square with zeros."""
    x = tensor("x", 1, 8, 16, 16)
    kernels = [constant(np.ones((8, 8, *k), np.float32)) for k in ((3, 1), (1, 3))]
    pads = ((1, 0, 1, 0), (0, 1, 0, 1))
    convs = [apply(registry["Conv"], [x, w], {"pads": p}) for w, p in zip(kernels, pads, strict=True)]
    relus = [apply(registry["Relu"], [conv]) for conv in convs]
    subject = Program((x,), (("y", relus[0]), ("z", relus[1])))
    for rest in (0.0, 0.035):  # where the rest takes long, no product alone is worth a search
        finder = Derive(lambda node, rest=rest: 1e-3 if node in convs else rest, max_states=6)  # type: ignore[misc]
        graph = EGraph()
        for root in subject.roots:
            graph.insert_term(root)
        graph.rebuild()
        graph.programs = [subject]
        proposals = list(finder(graph, 1000))
        assert all(len(proposal.equation.left) == 1 for proposal in proposals)
        assert bool(proposals) is (rest == 0.0)


def test_weights_are_arranged_ahead_of_time() -> None:
    """What is computed of them alone counts nothing."""
    node = call("Conv", (1, 4, 5, 5), (64, 4, 3, 3), pads=(1, 1, 1, 1))
    leaves = tuple(arg for arg in node.args if arg is not None)
    moving, constant_ = (
        Search(max_states=8, min_intensity=1.0, weights=frozenset(weights)) for weights in ((), (leaves[1],))
    )
    found = [s.run(*initial_expressions((node,), leaves, s.weights)) for s in (moving, constant_)]
    first, second = (min(one.seconds for one in each if "MatMul" in one.operators) for each in found)
    assert second < first
    assert {x.name for x, _ in found[1][0].state.nodes[:2]} == {"x0", "w1"}


def test_a_search_goes_on_where_it_was_cut() -> None:
    """In steps as at once."""
    node = call("Conv", (1, 4, 7, 7), (6, 4, 3, 3), pads=(1, 1, 1, 1))
    leaves = tuple(arg for arg in node.args if arg is not None)
    whole = Search(max_states=30, min_intensity=2.0)
    wanted = derived(node, leaves, whole)
    parts = Search(max_states=10, min_intensity=2.0)
    derived(node, leaves, parts)
    for states in (20, 30):
        assert parts.is_cut
        parts.max_states = states
        found = parts.resume()
    assert [one.state.key for one in found] == [one.state.key for one in wanted]
    assert (parts.explored, parts.produced) == (whole.explored, whole.produced)


def test_a_search_that_is_late_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever time ends: nothing is lost, and nothing counts twice."""
    node = call("Conv", (1, 4, 7, 7), (6, 4, 3, 3), pads=(1, 1, 1, 1))
    leaves = tuple(arg for arg in node.args if arg is not None)
    whole = Search(max_states=12, min_intensity=2.0)
    wanted = derived(node, leaves, whole)
    for asked in (3, 40, 90):
        times = chain(repeat(0.0, asked), repeat(2.0))
        parts = Search(max_states=12, min_intensity=2.0, deadline=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(
                "tensaurus.finders.derive.derivation_search.monotonic", lambda times=times: next(times)
            )
            derived(node, leaves, parts)
        assert parts.is_late and parts.is_cut
        parts.deadline = inf
        found = parts.resume()
        assert {one.state.key for one in found} == {one.state.key for one in wanted}
        assert (parts.explored, parts.produced) == (whole.explored, whole.produced)
        assert parts.pruned == whole.pruned


def test_what_time_left_no_start_for_is_not_kept() -> None:
    """Time is over before anything was merged: that is no finding."""
    (joint,) = (part for part in find_linear_regions(program(3)) if len(part.pieces) > 1)
    expressions = joint.expressions()
    assert expressions is not None
    for deadline in (0.0, inf):
        search = Search(max_states=2, deadline=deadline, weights=joint.weights)
        found = search_region(joint, *expressions, search, [[], []])
        assert search.is_late is (deadline == 0.0) and bool(found) is not search.is_late


def test_a_part_of_parts_is_each_alone() -> None:
    (joint,) = (part for part in find_linear_regions(program(2)) if len(part.pieces) > 1)
    assert [part.pieces for part in joint.single_regions] == [(piece,) for piece in joint.pieces]
    assert isinstance(joint.single_regions[0], LinearRegion) and joint.single_regions[0].forms != joint.forms
