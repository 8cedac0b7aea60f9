"""Reductions along axes, and operators that select or accumulate along one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Const, Scope, Tensor, call, compute, fold
from tensaurus.expr.sizes.size import Size, product
from tensaurus.ops.axes import distinct_axes, one_axis, replace_index
from tensaurus.ops.declare import op


def collapse(indices: Sequence[Size], axes: Sequence[int]) -> tuple[Size, ...]:
    """Return the indices into a tensor whose `axes` were reduced to length 1."""
    return tuple(0 if a in axes else i for a, i in enumerate(indices))


def reduction(
    monoid: str,
    x: Tensor | Scope,
    axes: Sequence[int],
    element: Callable[[Body], Any] = lambda v: v,
    *,
    finish: Callable[[Body], Any] = lambda v: v,
    keep: bool = True,
) -> Scope:
    """Return finish(the `monoid`, e.g. "max", of element(x) over the axes); they keep length 1 if `keep`."""
    kept = [a for a in range(x.rank) if a not in axes]
    shape = [1 if a in axes else n for a, n in enumerate(x.shape)] if keep else [x.shape[a] for a in kept]

    def at(*position: Size) -> Body:
        outer = [position[a] for a in kept] if keep else position

        def inside(*r: Size) -> Any:
            index_of = {**dict(zip(kept, outer, strict=True)), **dict(zip(axes, r, strict=True))}
            return element(x[tuple(index_of[a] for a in range(x.rank))])

        return finish(fold(monoid, [x.shape[a] for a in axes], inside))  # type: ignore[no-any-return]

    return compute(shape, at)


def mean(
    x: Tensor | Scope,
    axes: Sequence[int],
    element: Callable[[Body], Any] = lambda v: v,
    *,
    finish: Callable[[Body], Any] = lambda v: v,
    keep: bool = True,
) -> Scope:
    """Return finish(the mean of element(x) over the axes)."""
    count = product(x.shape[a] for a in axes)
    return reduction("sum", x, axes, element, finish=lambda v: finish(v / Const(count)), keep=keep)


def squared(v: Body) -> Body:
    return v * v


def _reduce_form(tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the axes written out, and `noop_with_empty_axes` only where it has an effect."""
    (x,) = tensors
    axes = attrs["axes"]
    if axes:
        return {"axes": tuple(sorted(distinct_axes(axes, x.rank))), "noop_with_empty_axes": 0}
    if attrs["noop_with_empty_axes"]:
        return {"axes": None, "noop_with_empty_axes": int(x.rank > 0)}
    return {"axes": tuple(range(x.rank)) or None, "noop_with_empty_axes": 0}


_EXAMPLES = (
    "f32[2,3,4] axes=(1,)",
    "f32[2,3,4] axes=(-1,0) keepdims=0",
    "f32[2,3]",
    "f64[2,3] noop_with_empty_axes=1",
    "f32[2,3] axes=() keepdims=0",
)


def _declare(
    name: str, moved: int, build: Callable[[Tensor, tuple[int, ...], bool], Scope], examples: Sequence[str]
) -> None:
    """Declare a reduction, whose axes are an input from version `moved` on."""

    def declare(
        x: Tensor, *, axes: tuple[int, ...] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Scope:
        return build(x, axes or (), bool(keepdims))

    op(name, moved={"axes": moved}, canonicalize=_reduce_form, examples=examples)(declare)


def _simple(
    monoid: str, element: Callable[[Body], Any] = lambda v: v, finish: Callable[[Body], Any] = lambda v: v
) -> Callable[[Tensor, tuple[int, ...], bool], Scope]:
    """Return `reduction` with these functions, as `_declare` takes it."""
    return lambda x, axes, keep: reduction(monoid, x, axes, element, finish=finish, keep=keep)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Scope:
    return mean(x, axes, keep=keep)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Scope:
    """m + log(sum(exp(x - m))), m = max(x): no term overflows."""
    top = reduction("max", x, axes)
    shifted = compute(x.shape, lambda *i: x[i] - top[collapse(i, axes)])
    logs = reduction("sum", shifted, axes, lambda v: call("exp", v), finish=lambda v: call("log", v))
    both = compute(top.shape, lambda *i: top[i] + logs[i])
    return both if keep else reduction("sum", both, axes, keep=False)


for _name, _moved, _build, _more in [
    ("ReduceSum", 13, _simple("sum"), ("i64[2,3] axes=(1,)", "f32[2,0] axes=(1,)")),
    ("ReduceMean", 18, _mean, ()),
    ("ReduceMax", 18, _simple("max"), ("i32[2,3] axes=(1,)", "bool[2,3] axes=(0,)")),
    ("ReduceMin", 18, _simple("min"), ("i32[2,3] axes=(1,)", "bool[2,3] axes=(0,)")),
    ("ReduceProd", 18, _simple("prod"), ("i32[2,3] axes=(1,)",)),
    ("ReduceL1", 18, _simple("sum", lambda v: call("abs", v)), ()),
    ("ReduceL2", 18, _simple("sum", squared, lambda v: call("sqrt", v)), ()),
    ("ReduceSumSquare", 18, _simple("sum", squared), ()),
    ("ReduceLogSumExp", 18, _log_sum_exp, ("f32[2,3]={1000,999,0,-1000,-1001,-1002} axes=(1,)",)),
]:
    _declare(_name, _moved, _build, (*_EXAMPLES, *_more))
_declare(
    "ReduceLogSum",
    18,
    _simple("sum", finish=lambda v: call("log", v)),
    [e.replace("]", "]>0", 1) for e in _EXAMPLES],
)


def first_extreme(monoid: str, x: Tensor, axes: Sequence[int], last: bool = False) -> Scope:
    """Return the row-major number, along the axes, of the first (or last) extreme; axes keep length 1."""
    extremes = reduction(monoid, x, axes)
    extents = [x.shape[a] for a in axes]
    no_match = Const(-1 if last else product(extents))  # loses against every number

    def at(*position: Size) -> Body:
        def inside(*r: Size) -> Body:
            index: list[Size] = list(position)
            number: Size = 0
            for a, i in zip(axes, r, strict=True):
                index[a] = i
                number = number * x.shape[a] + i
            return call("where", call("eq", x[tuple(index)], extremes[position]), Const(number), no_match)

        return fold("max" if last else "min", extents, inside)

    return compute(extremes.shape, at)


def _single_axis_form(tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    axis = attrs["axis"]
    if isinstance(axis, tuple):
        if len(axis) != 1:
            raise Untypable(f"axis {axis}")
        axis = axis[0]
    return {"axis": one_axis(axis, tensors[0].rank)}


def _arg_extreme(name: str, monoid: str) -> None:
    def declare(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Scope:
        if x.shape[axis] == 0:
            raise Untypable("there is no element to choose")
        numbers = first_extreme(monoid, x, (axis,), bool(select_last_index))
        return numbers if keepdims else reduction("max", numbers, (axis,), keep=False)

    op(name, canonicalize=_single_axis_form, examples=[
        "f32[2,3,4] axis=1", "f32[2,3] axis=-1 keepdims=0", "f32[5]={1,3,3,0,0}",
        "f32[5]={1,3,3,0,0} select_last_index=1", "i32[2,4] axis=1",
    ])(declare)  # fmt: skip


_arg_extreme("ArgMax", "max")
_arg_extreme("ArgMin", "min")


def _cumulative(name: str, since: int, monoid: str, neutral: int) -> None:
    """Declare a sum or product of each element and all before it: a window as long as the axis."""

    def declare(x: Tensor, *, axis: int, exclusive: int = 0, reverse: int = 0) -> Scope:
        def at(*i: Size) -> Body:
            def inside(r: Size) -> Body:
                step = r + exclusive
                position = i[axis] + step if reverse else i[axis] - step
                return x.padded(neutral)[replace_index(i, axis, position)]

            return fold(monoid, (x.shape[axis],), inside)

        return compute(x.shape, at)

    op(name, since=since, moved={"axis": 1}, canonicalize=_single_axis_form, examples=[
        "f32[2,4] axis=1", "f32[3,2] axis=0 exclusive=1", "f32[2,4] axis=-1 reverse=1",
        "f64[5] axis=0 exclusive=1 reverse=1", "i64[4] axis=0",
    ])(declare)  # fmt: skip


_cumulative("CumSum", 11, "sum", 0)
_cumulative("CumProd", 26, "prod", 1)
