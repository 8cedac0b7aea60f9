"""Random nodes over every declared operator: other types, sizes and attributes than its examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sketches.attributes import attributes
from sketches.elements import FLOATS, Random
from sketches.sketch import SIGNED, Sketch, Undrawn, beyond
from tensaurus.ops import Op, TensorType, registry
from tensaurus.ops.declare import NUMBERS
from tensaurus.ops.element_type import tensor_text
from tensaurus.ops.examples import Example, parse_example
from tensaurus.ops.schema import NotInOpset, formal_inputs, schema_of

SIZES = (1, 2, 3, 4, 5, 6, 7)
TRIES = 60
LONG = 0.15  # of the windows
LARGE = 0.06  # of the nodes have one size beyond 400


@cache
def declared(opset: int) -> tuple[Op, ...]:
    """The operators that this opset has."""
    found = []
    for _, op in sorted(registry.items()):
        if op.domain:
            continue
        try:
            schema_of(op, opset)
        except NotInOpset:
            continue
        found.append(op)
    return tuple(found)


@cache
def examples(op: Op) -> tuple[Example, ...]:
    return tuple(parse_example(text) for text in op.examples)


def of_operators(opset: int, rng: Random, op: Op | None = None) -> Sketch:
    """A model of a few nodes, the first of them of the operator where one is given."""
    sketch = Sketch(opset, rng)
    extend(sketch, int(rng.integers(1, 5)), op)
    if not sketch.nodes:
        raise Undrawn("nothing types")
    return sketch


def extend(sketch: Sketch, count: int, op: Op | None = None) -> None:
    """So many nodes more, where they can be drawn."""
    choices = declared(sketch.opset)
    for step in range(count):
        chosen = op if op is not None and not step else choices[int(sketch.rng.integers(len(choices)))]
        for _ in range(TRIES if step == 0 else TRIES // 4):
            try:
                grow(sketch, chosen)
                break
            except Undrawn:
                continue


def grow(sketch: Sketch, op: Op) -> list[str]:
    """A node of the operator more; the names of its outputs.  Raises Undrawn."""
    rng = sketch.rng
    known = examples(op)
    example = known[int(rng.integers(len(known)))]
    started = _start(sketch, example)
    sizes = _sizes(example, started, rng)
    types = _types(op, example, sketch, started, sizes)
    if op.name in SHAPES and rng.random() < 0.7 and started is None:
        types, more = SHAPES[op.name](types, rng)
        given = attributes(op, {**example.attrs, **more}, types, rng)
        given.update(more)
    else:
        given = attributes(op, example.attrs, types, rng)
    if sketch.opset < SIGNED and types and types[0] is not None:
        rank = types[0].rank
        for name in ("axis", "axes"):
            if isinstance(given.get(name), int) and given[name] < 0:
                given[name] += rank
            elif isinstance(given.get(name), tuple):
                given[name] = tuple(n + rank if n < 0 else n for n in given[name])
    names: list[str | None] = []
    planned: list[tuple[int, TensorType]] = []
    trial = dict(sketch.types)
    for place, kind in enumerate(types):
        if kind is None:
            names.append(None)
            continue
        found = _existing(sketch, kind, example, place, started)
        if found is None:
            found = f"?{place}"
            trial[found] = kind
            planned.append((place, kind))
        names.append(found)
    kept, sketch.types = sketch.types, trial
    try:
        sketch.typed(op, names, given)
    finally:
        sketch.types = kept
    added = []
    static = _static(op, sketch.opset)
    for place, kind in planned:
        sign, bounds = example.ranges[place] if place < len(example.ranges) else ("", ())
        if sign == "<" and kind.dtype not in FLOATS:
            bounds = (float(sizes.get(int(bounds[0]), int(bounds[0]))),)
        constant = place in static or rng.random() < (0.4 if place else 0.1)
        value = None
        if sign:
            from sketches.elements import elements

            value = elements(kind, rng, sign, bounds)
        names[place] = sketch.leaf(kind, value, constant)
        added.append(names[place])
    try:
        return sketch.apply(op, names, given)
    except Undrawn:
        for name in added:
            assert name is not None
            del sketch.types[name]
            sketch.inputs.pop(name, None)
            sketch.constants.pop(name, None)
        raise


@cache
def _static(op: Op, opset: int) -> frozenset[int]:
    """The inputs that this opset writes as attributes."""
    order = formal_inputs(op, opset)
    return frozenset(k for k, formal in enumerate(op.inputs) if formal.name not in order)


def _start(sketch: Sketch, example: Example) -> str | None:
    """A value of the model that can be the first input."""
    if not sketch.types or not example.types or example.types[0] is None or sketch.rng.random() < 0.25:
        return None
    wanted = example.types[0]
    read = {name for node in sketch.nodes for name in node.input}
    fitting = [
        n for n, kind in sketch.types.items() if kind.rank == wanted.rank and n not in sketch.constants
    ]
    fresh = [n for n in fitting if n not in read] or fitting
    if not fresh:
        raise Undrawn("nothing of this rank")
    return fresh[int(sketch.rng.integers(len(fresh)))]


def _sizes(example: Example, started: str | None, rng: Random) -> dict[int, int]:
    """Other sizes for those of the example: equal ones stay equal, others mostly differ."""
    old = sorted({int(n) for kind in example.types if kind is not None for n in kind.shape})  # type: ignore[arg-type]
    draw = rng.random()
    if old and rng.random() < LARGE:
        return {n: int(rng.choice((1, 2, 3))) for n in old} | {int(rng.choice(old)): beyond(rng)}
    if draw < 0.3 or started is not None and draw < 0.6:
        return {}
    if draw < 0.8:
        return {n: int(m) for n, m in zip(old, rng.permutation([*SIZES, *SIZES])[: len(old)], strict=True)}
    if draw < 0.95:
        return {n: int(rng.choice((1, 2, 3))) for n in old}
    return {n: int(rng.choice((0, 1, 3))) for n in old}


def _types(
    op: Op, example: Example, sketch: Sketch, started: str | None, sizes: dict[int, int]
) -> tuple[TensorType | None, ...]:
    """The example's types with other sizes and element types."""
    rng = sketch.rng
    dtypes: dict[str, str] = {}
    if started is not None:
        first = example.types[0]
        assert first is not None
        own = sketch.types[started]
        dtypes[first.dtype] = own.dtype
        for old, new in zip(first.shape, own.shape, strict=True):
            sizes[int(old)] = int(new)  # type: ignore[arg-type]
    elif rng.random() < 0.5:
        dtypes = {
            kind.dtype: str(rng.choice(_allowed(op, sketch.opset, place)))
            for place, kind in enumerate(example.types)
            if kind is not None
        }
    found: list[TensorType | None] = []
    for place, kind in enumerate(example.types):
        if kind is None:
            found.append(None)
            continue
        if place == 0 and started is not None:
            found.append(sketch.types[started])
            continue
        shape = tuple(sizes.get(int(n), int(n)) for n in kind.shape)  # type: ignore[arg-type]
        if rng.random() < 0.08 and shape:
            shape = tuple(1 if rng.random() < 0.4 else n for n in shape)
        found.append(TensorType(dtypes.get(kind.dtype, kind.dtype), shape))
    return tuple(found)


@cache
def _allowed(op: Op, opset: int, place: int) -> tuple[str, ...]:
    schema = schema_of(op, opset)
    if not schema.inputs:
        return ("float32",)
    order = formal_inputs(op, opset)
    name = op.inputs[min(place, len(op.inputs) - 1)].name
    spot = order.index(name) if name in order else 0
    texts = schema.inputs[min(spot, len(schema.inputs) - 1)].types
    found = tuple(d for d in sorted(NUMBERS) if tensor_text(d) in texts)
    return found or ("float32",)


def _existing(
    sketch: Sketch, kind: TensorType, example: Example, place: int, started: str | None
) -> str | None:
    """A value of the model that can stand here, now and then."""
    if place == 0:
        return started
    if place < len(example.ranges) and example.ranges[place][0] or sketch.rng.random() < 0.6:
        return None
    found = [n for n, other in sketch.types.items() if other == kind and n not in sketch.constants]
    return found[int(sketch.rng.integers(len(found)))] if found else None


# ------------------------------------------------------------------- shapes that examples cannot tell


Shaped = tuple[tuple[TensorType | None, ...], dict[str, Any]]


def _with(kind: TensorType | None, *shape: int) -> TensorType | None:
    return None if kind is None else TensorType(kind.dtype, shape)


def _convolution(types: tuple[TensorType | None, ...], rng: Random, transposed: bool, w: int = 1) -> Shaped:
    """Groups, channels of each, and kernels, each drawn alone."""
    group, depth, count = (int(n) for n in rng.integers(1, 4, 3))
    window = _window(rng, transposed)
    batch = int(rng.integers(1, 4))
    found = list(types)
    found[0] = _with(types[0], batch, group * depth, *window.spatial)
    found[w] = (
        _with(types[w], group * depth, count, *window.kernel)
        if transposed
        else _with(types[w], group * count, depth, *window.kernel)
    )
    for place, kind in enumerate(types):
        if place not in (0, w) and kind is not None and kind.rank == 1 and kind.shape != (1,):
            found[place] = _with(kind, group * count)
    more: dict[str, Any] = {"group": group, "kernel_shape": None, "auto_pad": "NOTSET"}
    more.update(window.attributes)
    if transposed:
        more.update(output_padding=None, output_shape=None)
    return tuple(found), more


def _pool(types: tuple[TensorType | None, ...], rng: Random) -> Shaped:
    window = _window(rng, False)
    more: dict[str, Any] = {"kernel_shape": window.kernel, **window.attributes}
    more["auto_pad"] = (
        "NOTSET" if rng.random() < 0.8 else str(rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID")))
    )
    shape = (*(int(n) for n in rng.integers(1, 4, 2)), *window.spatial)
    return (_with(types[0], *shape),), more


@dataclass(frozen=True)
class Window:
    """Sizes along the spatial dimensions, with strides, dilations and pads, None where they are left out."""

    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    attributes: dict[str, tuple[int, ...] | None]


def _window(rng: Random, transposed: bool) -> Window:
    """A window of three at most along each dimension or, now and then, a long one along the last."""
    rank = int(rng.choice((1, 2, 2, 2, 3)))
    sizes = {
        "spatial": [int(n) for n in rng.integers(1, 8, rank)],
        "kernel": [int(n) for n in rng.integers(1, 4, rank)],
        "strides": [int(n) for n in rng.integers(1, 4, rank)],
        "dilations": [int(n) for n in rng.integers(1, 4, rank)],
    }
    drawn = {"pads": tuple(int(n) for n in rng.integers(0, 3, 2 * rank)) if rng.random() < 0.6 else None}
    long = rng.random() < LONG
    if long:
        for name, size in _long(rng, transposed).items():
            sizes[name][-1] = size
    for name in ("strides", "dilations"):
        drawn[name] = tuple(sizes[name]) if long or rng.random() < 0.6 else None
    return Window(tuple(sizes["spatial"]), tuple(sizes["kernel"]), drawn)


def _long(rng: Random, transposed: bool) -> dict[str, int]:
    """One dimension of a short-time Fourier transform, or of its inverse: a few windows, far apart."""
    kernel = int(2 ** rng.uniform(3, 8.7))
    choices = 1, 2, kernel // 4, kernel // 2, kernel - 1, kernel, 2 ** int(rng.integers(8))
    stride = min(128, max(1, int(rng.choice(choices))))
    dilation = 1 if rng.random() < 0.7 else int(rng.integers(2, 5))
    windows = int(rng.integers(1, 6))
    reach = dilation * (kernel - 1) + 1 + stride * (windows - 1)
    spatial = windows if transposed else reach + int(rng.integers(stride))
    return {"kernel": kernel, "strides": stride, "dilations": dilation, "spatial": spatial}


SHAPES: dict[str, Callable[[tuple[TensorType | None, ...], Random], Shaped]] = {
    "Conv": lambda types, rng: _convolution(types, rng, False),
    "ConvTranspose": lambda types, rng: _convolution(types, rng, True),
    "ConvInteger": lambda types, rng: _convolution(types, rng, False),
    "QLinearConv": lambda types, rng: _convolution(types, rng, False, 3),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
}
