"""Random attributes, by name: what an example says, or anything that their names allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sketches.elements import Random
from tensaurus.ops import Op, TensorType
from tensaurus.ops.declare import NUMBERS
from tensaurus.ops.examples import parse_example

FLOATS = (-1.5, -0.5, -0.25, 0.0, 0.1, 0.75, 1.0, 2.0)
RATIOS = (0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 1.7, 2.0, 2.5, 3.0)
DRAWS: dict[str, Callable[[Around], Any]] = {}


@dataclass(frozen=True)
class Around:
    """What an attribute is drawn for: its operator, the types of the inputs, the example's own value."""

    op: Op
    types: tuple[TensorType | None, ...]
    own: Any
    given: dict[str, Any]
    rng: Random

    @property
    def shape(self) -> tuple[int, ...]:
        kind = self.types[0] if self.types else None
        return () if kind is None else tuple(int(n) for n in kind.shape)  # type: ignore[arg-type]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def windows(self) -> int:
        """Spatial dimensions, where the operator has windows."""
        return max(self.rank - 2, 1)

    def few(self, count: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(low, high + 1, count))

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def axis(self) -> int:
        return int(self.rng.integers(-self.rank, self.rank)) if self.rank else 0

    def axes(self, count: int) -> tuple[int, ...]:
        found = self.rng.permutation(self.rank)[:count]
        return tuple(int(d) - self.rank * int(self.rng.integers(2)) for d in found)


def attributes(
    op: Op, given: dict[str, Any], types: tuple[TensorType | None, ...], rng: Random, share: float = 0.6
) -> dict[str, Any]:
    """The attributes given, a share of them drawn anew; fewer of those that were left out."""
    found = dict(given)
    for name, default in op.attributes.items():
        if name not in DRAWS or rng.random() > (share if name in given else share / 3):
            continue
        found[name] = DRAWS[name](Around(op, types, given.get(name, default), found, rng))
        if name in ("starts", "scales") and found[name] is not None:  # what belongs together
            _beside(name, Around(op, types, None, found, rng), found)
    return found


def _beside(name: str, around: Around, found: dict[str, Any]) -> None:
    if name == "scales":
        found.pop("sizes", None)
        return
    count = len(found["starts"])
    axes = around.axes(count)
    full = [around.shape[d] for d in axes]
    found["axes"] = axes
    found["starts"] = tuple(int(around.rng.integers(-n - 2, n + 3)) for n in full)
    found["ends"] = tuple(
        int(around.rng.integers(-n - 2, n + 3))
        if around.rng.random() < 0.8
        else around.one([2**63 - 1, -(2**63), 2**31])
        for n in full
    )
    found["steps"] = (
        tuple(around.one([1, 1, 2, 3, -1, -2]) for _ in full) if around.rng.random() < 0.7 else None
    )


def draws(*names: str) -> Callable[[Callable[[Around], Any]], Callable[[Around], Any]]:
    def register(function: Callable[[Around], Any]) -> Callable[[Around], Any]:
        DRAWS.update(dict.fromkeys(names, function))
        return function

    return register


@draws(
    "ceil_mode",
    "count_include_pad",
    "keepdims",
    "exclusive",
    "reverse",
    "fmod",
    "select_last_index",
    "transA",
    "transB",
    "upper",
    "noop_with_empty_axes",
    "detect_negative",
    "detect_positive",
    "largest",
    "storage_order",
    "allowzero",
)
def _switch(a: Around) -> Any:
    return int(a.rng.integers(2))


@draws("alpha", "beta", "gamma", "lambd", "bias")
def _number(a: Around) -> Any:
    return a.one(FLOATS)


@draws("axis")
def _axis(a: Around) -> Any:
    return a.axis()


@draws("axes")
def _axes(a: Around) -> Any:
    if a.rng.random() < 0.2 and "starts" not in a.given:
        return None
    return a.axes(int(a.rng.integers(1, a.rank + 1)) if a.rank else 0)


@draws("perm")
def _perm(a: Around) -> Any:
    return tuple(int(d) for d in a.rng.permutation(a.rank))


@draws("kernel_shape")
def _kernel(a: Around) -> Any:
    return a.few(a.windows, 1, 3)


@draws("strides", "dilations")
def _steps(a: Around) -> Any:
    return a.few(a.windows, 1, 3)


@draws("output_padding")
def _more(a: Around) -> Any:
    return a.few(a.windows, 0, 1)


@draws("pads")
def _pads(a: Around) -> Any:
    if "kernel_shape" in a.op.attributes:
        return a.few(2 * a.windows, 0, 2)
    return a.few(2 * a.rank, *a.one([(0, 2), (-1, 2), (-2, 1)]))


@draws("value")
def _value(a: Around) -> Any:
    if isinstance(a.own, tuple) or not a.types:
        return a.own
    return a.one([None, 0, 1, -2, 3])


@draws("auto_pad")
def _automatic(a: Around) -> Any:
    return a.one(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])


@draws("shape")
def _shape(a: Around) -> Any:
    if not a.types:
        return a.few(int(a.rng.integers(0, 4)), 0, 4)
    if "allowzero" not in a.op.attributes:  # what broadcasts with it
        sizes = [n if n != 1 else int(a.rng.integers(1, 4)) for n in a.shape]
        sizes = [n if a.rng.random() < 0.7 else 1 for n in sizes]
        return (*a.few(int(a.rng.integers(0, 2)), 1, 3), *sizes)
    sizes = _regrouped(a.shape, a.rng)
    for place, n in enumerate(sizes):
        if place < a.rank and n == a.shape[place] and a.rng.random() < 0.3:
            sizes[place] = 0
    if sizes and a.rng.random() < 0.4:
        sizes[int(a.rng.integers(len(sizes)))] = -1
    return tuple(sizes)


def _regrouped(shape: tuple[int, ...], rng: Random) -> list[int]:
    """Other sizes of as many elements: neighbours multiplied, factors moved."""
    whole, sizes = prod(shape), []
    if not whole:
        return list(shape)
    for _ in range(int(rng.integers(1, 4))):
        factors = [n for n in range(1, whole + 1) if whole % n == 0]
        sizes.append(int(rng.choice(factors)))
        whole //= sizes[-1]
    return [*sizes, whole]


@draws("split")
def _split(a: Around) -> Any:
    axis = a.given.get("axis", a.op.attributes["axis"])
    if not -a.rank <= axis < a.rank:
        return a.own
    size = a.shape[axis]
    cuts = sorted(a.few(int(a.rng.integers(1, 3)), 0, size))
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, size], strict=True))


@draws("num_outputs")
def _outputs(a: Around) -> Any:
    return int(a.rng.integers(1, 4)) if a.own is not None else None


@draws("starts")
def _starts(a: Around) -> Any:
    return a.few(int(a.rng.integers(1, a.rank + 1)), 0, 0) if a.rank else a.own


@draws("repeats")
def _repeats(a: Around) -> Any:
    return a.few(a.rank, *a.one([(1, 3), (0, 2)]))


@draws("scales")
def _scales(a: Around) -> Any:
    return None if a.own is None else tuple(1.0 if d < 2 else a.one(RATIOS) for d in range(a.rank))


@draws("to", "dtype")
def _dtype(a: Around) -> Any:
    return a.one(sorted(NUMBERS))


@draws("k", "batch_dims", "depth", "p", "size", "blocksize")
def _small(a: Around) -> Any:
    return int(a.rng.integers(-2 if a.op.attributes.get("upper") is not None else 0, 5))


def _texts(op: Op, name: str) -> list[str]:
    found = [parse_example(text).attrs.get(name) for text in op.examples]
    return sorted({v for v in found if isinstance(v, str)})


@draws("mode", "nearest_mode", "coordinate_transformation_mode", "approximate", "keep_aspect_ratio_policy")
def _word(a: Around) -> Any:
    for name in ("mode", "nearest_mode", "coordinate_transformation_mode", "approximate"):
        words = _texts(a.op, name)
        if a.own in words:
            return a.one(words)
    return a.own
