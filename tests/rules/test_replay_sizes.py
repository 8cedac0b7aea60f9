"""Rewrites of models with open sizes are replayed at sizes that are numbers, however these are computed."""

from __future__ import annotations

import onnx
import pytest
from small_programs import node, rules, source, whole_library

from tensaurus.check.program.field_check import check_field
from tensaurus.check.program.replay import refute_equation
from tensaurus.check.program.replay_sizes import shape_at, size_choices
from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.match.saturate import Limits, saturate
from tensaurus.expr.sizes.size import Poly, Symbol, largest, polynomial, smallest, terms_of
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import TensorType
from tensaurus.rules.language.equation import Equation, instantiate_rule
from tensaurus.rules.language.match import Matcher

N, M = polynomial(Symbol("N")), polynomial(Symbol("M"))
SIZES = {
    "min of a large number": "s = Min (n, huge)",
    "clamped": "a = Max (n, two) s = Min (a, seven)",
    "half": "a = Div (n, two) s = Max (a, one)",
    "remainder": "a = Mod (n, seven) s = Add (a, one)",
    "less some": "a = Sub (n, two) s = Max (a, one)",
    "of both": "s = Min (n, m)",
}
USES = {
    "Slice": "y0 = Slice (x, zero, s, zero)",
    "Split": """k = Min (s, n) o = Sub (n, k) parts = Concat <axis = 0> (k, o)
                u, v = Split <axis = 0> (x, parts) y0 = Concat <axis = 0> (v, u)""",
    "Expand": "r = Slice (x, zero, one, zero) e = Concat <axis = 0> (s, m) y0 = Expand (r, e)",
    "Range": "t = Squeeze (s, zero) r = Range (first, t, step) f = Cast <to = 1> (r) y0 = Add (f, f)",
    "Tile": "e = Concat <axis = 0> (s, one) y0 = Tile (x, e)",
    "Pad": "e = Concat <axis = 0> (zero, zero, s, zero) y0 = Pad (x, e)",
    "ConstantOfShape": """e = Concat <axis = 0> (s, s) z = ConstantOfShape (e) i = EyeLike (z)
                          y0 = Mul (i, half)""",
    "Resize": """x4 = Unsqueeze (x, places) e = Concat <axis = 0> (one, one, s, m)
                 y0 = Resize <mode = "nearest"> (x4, , , e)""",
    "TopK": "k = Min (s, n) y0, i = TopK <axis = 0> (x, k)",
    "If": """g = Greater (s, two) c = Squeeze (g, zero)
             y0 = If (c) <then_branch = t () => (float[a, b] h) { h = Slice (x, zero, s, zero) },
                          else_branch = f () => (float[d, e] k)
                          { w = Concat <axis = 0> (s, m) z = ConstantOfShape (w) k = Exp (z) }>""",
}
RANK = {"Range": "u", "Resize": "u, v, w, z"}


def model(size: str, use: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, M] x) => (float[{RANK.get(use, "u, v")}] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] seven = {{7}},
         int64[1] huge = {{1000000000}}, int64 first = {{0}}, int64 step = {{1}}, float half = {{0.5}},
         int64[2] places = {{0, 1}}>
        {{ shape = Shape (x) n = Gather (shape, zero) m = Gather (shape, one) {SIZES[size]} {USES[use]}
           y1 = Relu (y0) y2 = Neg (y1) y3 = Mul (y2, half) y = Relu (y3) }}
        """
    )


@pytest.mark.parametrize("size", SIZES)
def test_sizes_that_are_computed_are_integers(size: str) -> None:
    """N - 3 is no fraction: the shape of what is read is a number as soon as N is one."""
    for made in import_model(model(size, "Slice")).nodes:
        for extent in made.types[0].shape:  # type: ignore[union-attr]
            parts = [extent] if isinstance(extent, Poly) else []
            parts += [a for p in parts for f, _ in terms_of(p) for atom in f for a in atom.nested_sizes()]
            assert all(type(c) is int for part in parts for _, c in terms_of(part))


@pytest.mark.nightly(every=3)
@pytest.mark.parametrize("use", USES)
def test_no_rewrite_is_refused_for_a_size_that_is_computed(use: str) -> None:
    """Every union of an exploration is replayed: it raises NotEqualError for the first that is refused."""
    for place, size in enumerate(SIZES):
        if place % 3 == list(USES).index(use) % 3:  # each size with some uses
            graph = EGraph()
            for _, root in import_model(model(size, use)).outputs:
                graph.insert_term(root)
            graph.rebuild()
            saturate(graph, whole_library(), Limits(nodes=120, rounds=2), refutation=refute_equation)


@pytest.mark.parametrize("extent", [smallest(N, 5), N + largest(-5, -N), largest(1, N - 3), smallest(N, M)])
def test_a_wrong_rewrite_of_such_a_tensor_is_refuted(extent: object) -> None:
    """Also of [N - min(5, N), M], which would be empty at N = 4: nothing differs there."""
    x = source("x", TensorType("float32", (extent, M)))
    whole = Program((x,), (("y", node("Relu", x)),))
    assert check_field(whole, whole).trials
    for line, right in (("Neg(Neg(x)) => x", True), ("Neg(Neg(x)) => Neg(x)", False)):
        assert (refute_equation(_applied(line, node("Neg", node("Neg", x)))) is None) == right
    (first, *_) = size_choices([whole])
    assert min(shape_at(x.tensor, first)) > 0


def test_sizes_of_different_names_differ() -> None:
    x = source("x", TensorType("float32", (N, M)))
    plans = list(size_choices([Program((x,), (("y", node("Relu", x)),))]))
    assert len(set(plans[0].values())) == 2 and len(set(plans[1].values())) == 1


def test_a_leaf_that_another_is_computed_from() -> None:
    """x - y = x + (-y) at x = -y: the right side reads x twice, as equal nodes are one."""
    y = source("y", TensorType("float32", (3,)))
    x = node("Neg", y)
    assert refute_equation(_applied("Sub(x, y) => Add(x, Neg(y))", node("Sub", x, y))) is None
    assert refute_equation(_applied("Sub(x, y) => Add(Neg(y), y)", node("Sub", x, y))) is not None


def _applied(line: str, root: Node) -> Equation:
    """Return the equation of the rule at a node."""
    (rule,) = rules(line)
    matcher = Matcher(rule)
    (binding, *_) = matcher.match_roots([root])
    return instantiate_rule(rule, binding, [root], matcher.apply([root], binding))
