"""Guards are decided, and ranges narrowed, without a point lost or won."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tensaurus.expr.normal.axis_ranges import narrow_by_guards
from tensaurus.expr.sizes.size import Axis, Size, Symbol, evaluate, floordiv, polynomial

A, Q = polynomial(Symbol("A", 1)), polynomial(Symbol("Q", 1))
H, J, K = Axis("h", A * Q), Axis("j", 4), Axis("k", 2 * Q)  # in their ranges quotients by Q have a few values
AXES = (H, J, K)
NUMBERS = st.integers(-3, 3)


@st.composite
def guards(draw: Any) -> Size:
    """Sizes with slopes, symbols, and quotients of axes by what divides their extents or does not."""
    terms = [draw(st.sampled_from([1, Q, A, A * Q])) * draw(NUMBERS) + draw(NUMBERS)]
    for _ in range(draw(st.integers(1, 2))):
        whole = polynomial(draw(st.sampled_from(AXES)))
        if draw(st.booleans()):
            whole = floordiv(whole + draw(st.sampled_from([0, 1, Q])), draw(st.sampled_from([Q, 2, A])))
        terms.append(draw(st.sampled_from([1, -1, 2, Q, -Q])) * whole)
    return sum(terms, 0)


def points(axes: Any, conditions: Any, names: Any, numbers: dict[Any, int]) -> set[tuple[int, ...]]:
    """Where all conditions hold, as what the names are there."""
    found = set()
    sizes = [evaluate(a.extent, numbers.__getitem__) for a in axes]
    for place in product(*map(range, sizes)):
        at = numbers | dict(zip(axes, place, strict=True))
        if all(evaluate(g, at.__getitem__) >= 0 for g in conditions):
            found.add(tuple(evaluate(size, at.__getitem__) for size in names))
    return found


@settings(max_examples=400)
@given(
    conditions=st.lists(guards(), min_size=1, max_size=4),
    free=st.sets(st.sampled_from(AXES), max_size=2),
    a=st.integers(1, 3),
    q=st.integers(1, 3),
)
def test_no_point_is_lost_or_won(conditions: list[Size], free: set[Axis], a: int, q: int) -> None:
    """Axes that are not bound keep their names, and their guards."""
    bound = [axis for axis in AXES if axis not in free]
    numbers: dict[Any, int] = {Symbol("A", 1): a, Symbol("Q", 1): q}
    wanted = points(AXES, conditions, [polynomial(x) for x in AXES], numbers)
    settled = narrow_by_guards(bound, conditions)
    if settled is None:
        assert not wanted
        return
    axes, left, values = settled
    names = [values.get(x, polynomial(x)) for x in AXES]
    assert points([*axes, *sorted(free, key=str)], left, names, numbers) == wanted


def test_a_range_decides_a_quotient() -> None:
    """In the first A of A*Q groups of Q kernels, none reads a channel of the groups behind them."""
    i = Axis("o", 2 * A * Q)
    group = floordiv(polynomial(i), Q)
    inside, behind = A * Q - 1 - polynomial(i), group - A
    assert narrow_by_guards([], [inside, behind]) is None
    assert narrow_by_guards([], [inside, A - 1 - group]) == ((), (inside,), {})
    assert narrow_by_guards([], [inside, group - 1]) == ((), (inside, group - 1), {})
