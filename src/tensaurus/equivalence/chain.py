"""Every rewrite of a result, replayed on the model's own weights before any constant is rounded.

Each application of a rule is cut out of the program: what its variables bound becomes an input (constants
stay what they are), and both sides are compared on random elements of GF(2^31 - 1), exactly.  The pieces are
shallow, so each has a small degree and a useful error bound; the bounds add up along the chain, from the
original program to the result.  Over the whole program at once the formal degree doubles with every layer
that multiplies activations, and no bound would be left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from tensaurus.algebra.field import Reals
from tensaurus.backends import BackendError
from tensaurus.backends.reference import evaluate_all
from tensaurus.equivalence.field_check import FieldCheck, check_field
from tensaurus.graph.node import Node, again, source
from tensaurus.graph.program import Program
from tensaurus.ops import TensorType, Untypable
from tensaurus.rules.match import Matcher
from tensaurus.rules.rule import Rule
from tensaurus.search.backtrack import Candidate, Change

TOLERANCE = 1e-9  # of float64 results, relative to the largest element: four digits above its rounding
LARGE = 1 << 15  # elements of one bound tensor above which a rewrite is replayed on a smaller one
SMALL = 9  # size to which the dimensions of a large tensor are cut, where the rule still types
UNKNOWN = 4  # of every dimension that is not known

FIELD_EVIDENCE = frozenset({"gf", "canonical form", "symbols"})


def check_rewrites(candidates: Sequence[Candidate], seed: int = 0) -> FieldCheck:
    """Every application of a rule along the candidates' chains; `trials` counts those compared.

    A rule that needs the order of the reals (it was proved or tested with the true max and min) is replayed
    in float64 instead, and rests on its own evidence.
    """
    applied = compared = ordered = 0
    degree, bound = 0.0, 0.0
    for rule, change in _applications(candidates):
        applied += 1
        pieces = _cut(rule, change)
        exact = rule.evidence is not None and rule.evidence.by in FIELD_EVIDENCE
        check = check_field(*pieces, seed=seed + applied) if exact else _check_reals(*pieces, seed)
        if not check.passed:
            return FieldCheck(False, applied, check.degree, 1.0, f"rewrite {rule.name}: {check.detail}")
        if exact and check.trials:
            compared += 1
            degree, bound = max(degree, check.degree), bound + check.error_bound
        ordered += not exact
    detail = f"{compared} of {applied} rewrites replayed over GF(2^31-1)"
    if ordered:
        detail += f", {ordered} that need the order of the reals in float64"
    return FieldCheck(True, compared, degree, min(1.0, bound), detail)


def _applications(candidates: Sequence[Candidate]) -> Iterator[tuple[Rule, Change]]:
    for candidate in candidates:
        for at in candidate.chain:
            if at.step is not None:
                for change in at.step.changes:
                    yield at.step.rule, change


def _cut(rule: Rule, change: Change) -> tuple[Program, Program]:
    """Both sides of one application as programs over what the rule's variables bound."""
    before, after = change
    matcher = Matcher(rule)
    for binding in matcher.bindings(before):
        if matcher.apply(before, binding) == after:
            break
    else:
        raise AssertionError(f"the rewrite {rule.name} does not replay")
    bound = dict.fromkeys(node for node in binding.nodes.values() if not node.static)
    large = any(_elements(node.tensor) > LARGE for node in bound)
    if large:
        small = {node: source(f"v{k}", _smaller(node.tensor)) for k, node in enumerate(bound)}
        try:
            left = _rebuilt(before, small)
            for binding in matcher.bindings(left):
                right = matcher.apply(left, binding)
                if right is not None:
                    return _piece(left, small), _piece(right, small)
        except Untypable:  # an attribute that holds the model's own sizes
            pass
    inputs = {node: source(f"v{k}", node.tensor) for k, node in enumerate(bound)}
    return _piece(_rebuilt(before, inputs), inputs), _piece(_rebuilt(after, inputs), inputs)


def _piece(roots: Sequence[Node], inputs: Mapping[Node, Node]) -> Program:
    outputs = tuple((f"y{k}", root) for k, root in enumerate(roots))
    return Program(tuple(inputs.values()), outputs)


def _elements(kind: TensorType) -> int:
    return prod(n if isinstance(n, int) else UNKNOWN for n in kind.shape)


def _smaller(kind: TensorType) -> TensorType:
    """Spatial dimensions (from the third on) cut: weights fix the others."""
    head, rest = kind.shape[:2], kind.shape[2:]
    return TensorType(kind.dtype, (*head, *(min(n, SMALL) if isinstance(n, int) else n for n in rest)))


def _rebuilt(roots: Sequence[Node], inputs: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots over other inputs, retyped.  Raises Untypable."""
    new: dict[Node, Node] = dict(inputs)

    def visit(node: Node) -> Node:
        if node not in new:
            new[node] = node if node.static else again(node, tuple(a and visit(a) for a in node.args))
        return new[node]

    return tuple(map(visit, roots))


def _check_reals(a: Program, b: Program, seed: int) -> FieldCheck:
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in a.inputs:
        kind = node.tensor
        shape = [n if isinstance(n, int) else UNKNOWN for n in kind.shape]
        feeds[node.attribute("name")] = rng.standard_normal(shape) * 4
    try:
        left, right = evaluate_all([a, b], feeds, Reals())
    except BackendError as error:
        return FieldCheck(False, 0, 0, 1.0, str(error))
    for name, value in left.items():
        allowed = TOLERANCE * (1 + np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
        same = np.isclose(right[name], value, rtol=0, atol=allowed, equal_nan=True)
        if not same.all():
            return FieldCheck(False, 1, 0, 1.0, f"{int((~same).sum())} elements differ in float64")
    return FieldCheck(True, 1, 0, 0.0)
