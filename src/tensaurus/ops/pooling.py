"""Pooling over sliding windows, and over all spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import (
    Body,
    Const,
    Read,
    Scope,
    Tensor,
    call,
    compute,
    fold,
    total,
    where,
    within,
)
from tensaurus.expr.sizes.size import Size, is_nonnegative, is_same_size
from tensaurus.ops.declare import op
from tensaurus.ops.reduction import mean, reduction, squared
from tensaurus.ops.windows import dilated_extent, output_sizes, window_attributes, window_indices


def spatial(x: Tensor) -> tuple[Size, ...]:
    """Return the spatial sizes of x [N, C, ...].  Raises Untypable where there are none."""
    if x.rank < 3:
        raise Untypable(f"pooling over rank {x.rank}")
    return x.shape[2:]


def _pool_form(tensors: tuple[Tensor, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """Return strides, dilations and pads written out, and 0 for flags that have no effect at these sizes."""
    sizes, kernel = spatial(tensors[0]), attrs["kernel_shape"]
    if len(kernel) != len(sizes) or not all(is_nonnegative(k - 1) for k in kernel):
        raise Untypable(f"a kernel {kernel} over {len(sizes)} spatial dimensions")
    result = window_attributes(sizes, kernel, attrs)
    if attrs["auto_pad"].startswith("SAME") and any(n != 1 for n in result.get("dilations", ())):
        raise Untypable("dilated windows padded to the same size, on which runtimes disagree")
    # as `output_sizes` takes them
    geometry = kernel, result["strides"], result.get("dilations", (1,) * len(sizes)), result["pads"]
    if "ceil_mode" in attrs:
        # ceil_mode stays where it changes the number of windows; SAME fixes that number by itself
        rounds_up = attrs["ceil_mode"] and not attrs["auto_pad"].startswith("SAME")
        sizes_by_rounding = (
            [output_sizes(sizes, *geometry, ceil) for ceil in (True, False)] if rounds_up else [(), ()]
        )
        result["ceil_mode"] = int(not all(map(is_same_size, *sizes_by_rounding)))
        if result["ceil_mode"] and attrs["auto_pad"] == "VALID":
            raise Untypable("windows without padding, rounded up, on which runtimes disagree")
    if "count_include_pad" in attrs:
        padded = not all(is_same_size(p, 0) for p in result["pads"])
        result["count_include_pad"] = int(bool(attrs["count_include_pad"]) and padded)
    if "storage_order" in attrs:
        result["storage_order"] = 0  # concerns Indices alone, an output that the declaration lacks
    return result


class Windows:
    """The windows of an input [N, C, ...]: where each reads, and how many of its elements lie inside."""

    def __init__(
        self,
        x: Tensor,
        kernel: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        ceil: int,
    ):
        self.x, self.kernel, self.strides, self.dilations, self.pads = x, kernel, strides, dilations, pads
        if not all(map(is_nonnegative, pads)):
            raise Untypable(f"pads {pads}")
        self.sizes = output_sizes(spatial(x), kernel, strides, dilations, pads, bool(ceil))

    @property
    def shape(self) -> tuple[Size, ...]:
        return (*self.x.shape[:2], *self.sizes)

    def reduce_window(
        self, monoid: str, outside: Any, position: Sequence[Size], element: Callable[[Read], Any]
    ) -> Body:
        """Return the reduction of element(x) over an output's window; beyond the edges x is `outside`."""

        def inside(*r: Size) -> Any:
            indices = window_indices(position[2:], r, self.strides, self.dilations, self.pads)
            return element(self.x.padded(outside)[(*position[:2], *indices)])

        return fold(monoid, self.kernel, inside)

    def counts(self, include_pad: bool) -> Callable[[Sequence[Size]], Body]:
        """Return a function of an output position: how many elements of its window count, in x's type."""
        rank = len(self.kernel)
        # the count is a product over dimensions; where windows overlap an edge, the factor differs by window
        constant_count, varying_counts = 1, []
        for d in range(rank):
            k, size = self.kernel[d], self.x.shape[2 + d]
            begin, end = self.pads[d], self.pads[rank + d]
            low, high = (-begin, size + end) if include_pad else (0, size)  # indices that count
            # one more than the last index of the last window
            last = (self.sizes[d] - 1) * self.strides[d] + dilated_extent(k, self.dilations[d]) - begin
            if is_nonnegative(-begin - low) and is_nonnegative(high - last):
                constant_count *= k  # every window lies inside
            else:
                varying_counts.append((d, self._count_inside(d, low, high)))

        def at(position: Sequence[Size]) -> Body:
            body: Body = Const(constant_count)
            for d, count in varying_counts:
                part = call(f"to_{self.x.dtype}", count[(position[2 + d],)])
                body = part if body == Const(1) else body * part
            return body

        return at

    def _count_inside(self, d: int, low: Size, high: Size) -> Scope:
        """Return for each window along dimension d how many of its indices lie in range(low, high)."""

        def at(i: Size) -> Body:
            def inside(r: Size) -> Body:
                index = i * self.strides[d] + r * self.dilations[d] - self.pads[d]
                return where(within(index, low, high), 1, 0)

            return total((self.kernel[d],), inside)

        return compute((self.sizes[d],), at)


_POOLS = (
    "f32[1,2,6,6] kernel_shape=(2,2) strides=(2,2)",
    "f32[1,2,7,5] kernel_shape=(3,3)",
    "f32[1,1,8] kernel_shape=(3,) strides=(2,)",
    "f32[1,1,4,4,4] kernel_shape=(2,2,2)",
    "f32[1,2,6,7] kernel_shape=(3,3) strides=(2,2) pads=(1,0,1,2)",
    "f32[1,2,6,7] kernel_shape=(3,2) strides=(2,2) auto_pad=SAME_UPPER",
    "f32[1,2,6,7] kernel_shape=(3,2) strides=(2,2) auto_pad=SAME_LOWER",
    "f32[1,2,6,7] kernel_shape=(3,2) strides=(2,2) auto_pad=VALID",
)
_CEIL = (
    "f32[1,2,6,7] kernel_shape=(3,2) strides=(2,2) auto_pad=SAME_UPPER ceil_mode=1",
    "f32[1,2,7,8] kernel_shape=(3,2) strides=(2,3) auto_pad=VALID ceil_mode=1",
    "f32[1,2,6,7] kernel_shape=(3,3) strides=(2,2) ceil_mode=1",
    "f32[1,2,7,6] kernel_shape=(3,3) strides=(2,2) pads=(1,1,1,1) ceil_mode=1",
)
_DILATED = ("f32[1,2,8,9] kernel_shape=(2,3) dilations=(2,2) pads=(1,1,1,1)",)


@op("MaxPool", since=1, canonicalize=_pool_form, examples=[*_POOLS, *_CEIL, *_DILATED])
def max_pool(
    x: Tensor, *, kernel_shape: tuple[int, ...], strides: tuple[int, ...] = (), pads: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (), auto_pad: str = "NOTSET", ceil_mode: int = 0, storage_order: int = 0,
) -> Scope:  # fmt: skip
    """The largest of each window of x [N, C, ...]; padding is -infinity."""
    windows = Windows(x, kernel_shape, strides, dilations, pads, ceil_mode)
    return compute(windows.shape, lambda *i: windows.reduce_window("max", float("-inf"), i, lambda v: v))


@op("AveragePool", since=1, canonicalize=_pool_form, examples=[
    *_POOLS, *_CEIL, *_DILATED,
    "f32[1,2,6,7] kernel_shape=(3,3) strides=(2,2) pads=(1,0,1,2) count_include_pad=1",
    "f32[1,2,7,6] kernel_shape=(3,3) strides=(2,2) pads=(1,1,1,1) ceil_mode=1 count_include_pad=1",
    "f32[1,2,8,9] kernel_shape=(2,3) dilations=(2,2) pads=(1,1,1,1) count_include_pad=1",
    "f32[1,2,9] kernel_shape=(3,) strides=(2,) pads=(2,1) count_include_pad=1",
    "f32[1,2,5,6,4] kernel_shape=(3,3,2) strides=(2,1,1) pads=(1,0,1,1,2,0) count_include_pad=1",
])  # fmt: skip
def average_pool(
    x: Tensor, *, kernel_shape: tuple[int, ...], strides: tuple[int, ...] = (), pads: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (), auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
) -> Scope:  # fmt: skip
    """The mean of each window of x [N, C, ...]; padding counts as zeros with count_include_pad."""
    windows = Windows(x, kernel_shape, strides, dilations, pads, ceil_mode)
    count = windows.counts(bool(count_include_pad))
    return compute(windows.shape, lambda *i: windows.reduce_window("sum", 0, i, lambda v: v) / count(i))


def power_of(p: int) -> Callable[[Body], Body]:
    """Return the function |v| ** p."""
    if p == 2:
        return squared
    return lambda v: call("abs", v) if p == 1 else call("pow", call("abs", v), p)


def root_of(p: int) -> Callable[[Body], Body]:
    """Return the function v ** (1 / p)."""
    if p < 1:
        raise Untypable(f"a norm of order {p}")
    if p == 2:
        return lambda v: call("sqrt", v)
    return lambda v: v if p == 1 else call("pow", v, Fraction(1, p))


@op("LpPool", since=2, canonicalize=_pool_form, examples=[
    *_POOLS, *_CEIL, *_DILATED, f"{_POOLS[1]} p=1", f"{_POOLS[1]} p=3",
])  # fmt: skip
def lp_pool(
    x: Tensor, *, kernel_shape: tuple[int, ...], p: int = 2, strides: tuple[int, ...] = (),
    pads: tuple[int, ...] = (), dilations: tuple[int, ...] = (), auto_pad: str = "NOTSET", ceil_mode: int = 0,
) -> Scope:  # fmt: skip
    """The p-norm of each window of x [N, C, ...]."""
    windows = Windows(x, kernel_shape, strides, dilations, pads, ceil_mode)
    element, root = power_of(p), root_of(p)
    return compute(windows.shape, lambda *i: root(windows.reduce_window("sum", 0, i, element)))


def spatial_axes(x: Tensor) -> tuple[int, ...]:
    """Return the spatial axes."""
    return tuple(range(2, len(spatial(x)) + 2))


@op("GlobalAveragePool", examples=["f32[2,3,4,5]", "f64[1,2,6]"])
def global_average_pool(x: Tensor) -> Scope:
    """The mean over all spatial axes."""
    return mean(x, spatial_axes(x))


@op("GlobalMaxPool", examples=["f32[2,3,4,5]", "f32[1,2,6]"])
def global_max_pool(x: Tensor) -> Scope:
    """The maximum over all spatial axes."""
    return reduction("max", x, spatial_axes(x))


@op("GlobalLpPool", since=2, examples=["f32[2,3,4,5]", "f32[1,2,6] p=1", "f32[1,2,6] p=3"])
def global_lp_pool(x: Tensor, *, p: int = 2) -> Scope:
    """The p-norm over all spatial axes."""
    return reduction("sum", x, spatial_axes(x), power_of(p), finish=root_of(p))
