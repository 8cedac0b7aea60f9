"""What is expected of operators that nobody measured, from those that were."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose

import pytest
from small_programs import node

from tensaurus.graph.ir.node import Node, apply, source
from tensaurus.graph.ir.piece import Piece
from tensaurus.ops import TensorType
from tensaurus.ops.eop import eop
from tensaurus.runtimes.measure.observe import Observation
from tensaurus.runtimes.price.costs import NEGLIGIBLE_SHARE, TYPICAL_MULTIPLE, Costs, Prices
from tensaurus.runtimes.price.estimates import NEAR_ESTIMATE, OPTIMISM, SAME_PRODUCT_SHARE
from tensaurus.runtimes.price.in_context_costs import PlacedChoice
from tensaurus.runtimes.price.operation_counts import product_operations
from tensaurus.runtimes.price.roofline import ONE_CORE, estimate

MATRIX = TensorType("float32", (64, 64))
X, Y = (source(name, MATRIX) for name in "xy")
PRODUCT = node("MatMul", X, Y)
PRODUCT_SECONDS = 2 * 64**3 * ONE_CORE.operation


@dataclass
class Told:
    """Costs of pieces that are told by their texts; estimates are those of a roofline."""

    seconds: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, float] = field(default_factory=dict)  # what kernels like them lead to expect

    def known(self, piece: Piece) -> float | None:
        return self.seconds.get(piece.text)

    def measure(self, piece: Piece) -> float:
        return self.seconds[piece.text]

    def estimate(self, piece: Piece) -> float:
        return estimate(piece)

    def product_seconds(self, piece: Piece) -> float:
        return sum(map(product_operations, piece.inner)) * ONE_CORE.operation

    def kernel_seconds(self, piece: Piece) -> float:
        return self.kernels.get(piece.text, 0.0)

    def note_observed(self, piece: Piece, seconds: float) -> None:
        """Nobody asks."""


def kernel(left: Node, right: Node) -> Node:
    """The matrix product as an eOperator."""
    rows, columns = left.tensor.shape[0], right.tensor.shape[1]
    scope = f"L[i:{rows}, j:{columns}](sum[k:{right.tensor.shape[0]}](mul(x0[i, k], x1[k, j])))"
    return apply(eop, [left, right], {"scope": scope})


def running(told: Told, first_seconds: float) -> Costs:
    """Costs after a first program that took these seconds, of which no operator is known."""
    costs = Costs(told)
    costs.in_context.learn(Observation(first_seconds, ()), [])
    return costs


@pytest.mark.parametrize("multiple", [1e-3, 0.5, 4.0])
def test_no_kernel_adds_up_products_faster_than_the_machine(multiple: float) -> None:
    """Whatever other operators took: here one that the runtime drops, or one that is slow."""
    relu = Piece.of(node("Relu", X))
    costs = Costs(Told({relu.text: multiple * estimate(relu)}))
    (_, expected), known = costs.standalone_seconds([relu, Piece.of(kernel(X, Y))])
    assert known == [True, False] and isclose(Told().product_seconds(Piece.of(PRODUCT)), PRODUCT_SECONDS)
    assert expected >= PRODUCT_SECONDS > 0
    if multiple < 1:
        assert isclose(expected, PRODUCT_SECONDS)


def test_a_kernel_is_expected_to_be_as_slow_as_others_of_its_kind() -> None:
    """Kernels like it say more than the machine's peaks, and less than its own time."""
    slow = Piece.of(kernel(X, Y))
    costs = Costs(Told(kernels={slow.text: 7 * PRODUCT_SECONDS}))
    assert costs.standalone_seconds([slow]) == ([7 * PRODUCT_SECONDS], [False])
    costs = Costs(Told({slow.text: 2 * PRODUCT_SECONDS}, kernels={slow.text: 7 * PRODUCT_SECONDS}))
    assert costs.standalone_seconds([slow]) == ([2 * PRODUCT_SECONDS], [True])


@pytest.mark.parametrize("multiple", [0.4, 3.0])
def test_no_product_is_expected_to_be_faster_than_the_fastest_one(multiple: float) -> None:
    """A runtime with fast algorithms takes less than the machine's peak seems to allow: 0.4 of it."""
    other = Piece.of(node("MatMul", *(source(name, TensorType("float32", (32, 32))) for name in "ab")))
    costs = Costs(Told({other.text: multiple * 2 * 32**3 * ONE_CORE.operation}))
    (_, expected), _ = costs.standalone_seconds([other, Piece.of(PRODUCT)])
    assert expected >= min(1.0, multiple) * PRODUCT_SECONDS


def test_what_is_fused_with_a_product_hardly_changes_its_time() -> None:
    """MatMul and Relu took 5 ms: so MatMul and Tanh, of the same sizes, will take about as long."""
    known, alike, other = (
        Piece(made, (X, Y)) for made in (node("Relu", PRODUCT), node("Tanh", PRODUCT), node("Neg", PRODUCT))
    )
    alone = Piece.of(node("MatMul", source("a", MATRIX), source("b", MATRIX)))
    costs = Costs(Told({known.text: 5e-3}))
    seconds, is_known = costs.standalone_seconds([known, alike, other, alone, Piece.of(kernel(X, Y))])
    assert is_known == [True, False, False, False, False]
    assert seconds[0] == 5e-3 and all(s >= SAME_PRODUCT_SHARE * 5e-3 for s in seconds[1:4])
    assert seconds[4] < SAME_PRODUCT_SHARE * 5e-3  # a kernel may be faster than the runtime's


def test_kernels_of_one_product_take_about_as_long() -> None:
    """What a kernel computes beside its product, and the order of its inputs, hardly matter."""
    plain = Piece.of(kernel(X, Y))
    scope = "L[i:64, j:64](max(0, sum[k:64](mul(x1[k, j], x0[i, k]))))"
    alike = Piece.of(apply(eop, [X, Y], {"scope": scope}))
    halved = scope.replace("k:64", "k:32")
    other = Piece.of(apply(eop, [X, Y], {"scope": halved}))
    seconds, known = Costs(Told({plain.text: 5e-3})).standalone_seconds([plain, alike, other])
    assert known == [True, False, False]
    assert seconds[1] >= SAME_PRODUCT_SHARE * 5e-3 > seconds[2]


def convolution(channels: int, group: int) -> Piece:
    """A convolution of 3x3, padded, at 8x8."""
    shapes = (1, channels, 8, 8), (channels, channels // group, 3, 3)
    x, w = (source(name, TensorType("float32", shape)) for name, shape in zip("xw", shapes, strict=True))
    return Piece.of(node("Conv", x, w, group=group, pads=(1, 1, 1, 1)))


def test_a_convolution_in_groups_is_expected_to_be_like_others_in_groups() -> None:
    """Runtimes have other code for groups: that may take 20 times its estimate, and others once."""
    dense, grouped, other, plain = (convolution(*sizes) for sizes in ((16, 1), (16, 4), (8, 4), (8, 1)))
    costs = Costs(Told({dense.text: estimate(dense), grouped.text: 20 * estimate(grouped)}))
    seconds, known = costs.standalone_seconds([dense, grouped, other, plain])
    assert known == [True, True, False, False]
    assert seconds[2] >= OPTIMISM * 20 * estimate(other)
    assert seconds[3] < 2 * estimate(plain)


def test_a_kernel_of_two_products_is_expected_to_be_like_others_of_two() -> None:
    """What a kernel of one product takes says little of it."""

    def chain(size: int) -> Piece:
        kinds = [TensorType("float32", (size, size))] * 3
        leaves = [source(name, kind) for name, kind in zip("xyz", kinds, strict=True)]
        inner = f"L[m:{size}, n:{size}](sum[p:{size}](mul(x0[m, p], x1[p, n])))"
        scope = f"L[i:{size}, j:{size}](sum[k:{size}](mul({inner}[i, k], x2[k, j])))"
        return Piece.of(apply(eop, leaves, {"scope": scope}))

    single, two, other = Piece.of(kernel(X, Y)), chain(64), chain(32)
    costs = Costs(Told({single.text: estimate(single), two.text: 5 * estimate(two)}))
    seconds, known = costs.standalone_seconds([single, two, other])
    assert known == [True, True, False] and seconds[2] >= OPTIMISM * 5 * estimate(other)


def scaled(elements: int) -> Piece:
    """A product by a constant, which large networks have hundreds of."""
    x = source("x", TensorType("float32", (elements,)))
    return Piece.of(node("Mul", x, source("c", TensorType("float32", (elements,)))))


def test_cheap_operators_are_not_measured_one_by_one() -> None:
    """One of 10 us tells those of about its size; not much larger ones, and none where 10 us count."""
    measured, near, far = scaled(1000), scaled(int(1000 * NEAR_ESTIMATE) - 1), scaled(2000)
    told = Told({measured.text: 1e-5})
    costs = running(told, 1.0)
    costs.measure(measured)
    (_, seconds, _), known = costs.standalone_seconds([measured, near, far])
    assert known == [True, True, False]
    assert isclose(seconds, 1e-5 * estimate(near) / estimate(measured))
    for first in (0.0, 0.99e-5 / NEGLIGIBLE_SHARE):  # no program was run yet; one of which they are a part
        costs = running(told, first)
        costs.measure(measured)
        assert costs.standalone_seconds([measured, near])[1] == [True, False]


def test_products_and_kernels_are_always_measured() -> None:
    """A decision may hang on them, however cheap they are."""
    told = Told({Piece.of(PRODUCT).text: 1e-9, Piece.of(kernel(X, Y)).text: 1e-9})
    wide = TensorType("float32", (64, 72))
    others = [Piece.of(make(X, source("z", wide))) for make in (lambda *args: node("MatMul", *args), kernel)]
    costs = running(told, 1.0)
    costs.standalone_seconds([Piece.of(PRODUCT), Piece.of(kernel(X, Y))])
    assert costs.standalone_seconds(others)[1] == [False, False]


def test_kernels_have_a_mean_of_their_own() -> None:
    """The runtime's operators took half as long in a program as alone; this tells nothing of kernels."""
    relu, made = node("Relu", X), kernel(X, Y)
    choices = [PlacedChoice((0,), Piece.of(relu), 2.0, frozenset([relu]))]
    costs = Costs(Told())
    costs.in_context.learn(Observation(1.0, ((frozenset([relu]), 1.0),)), choices)
    others = [Piece.of(node("Tanh", X)), Piece.of(made)]
    assert [*map(round, costs.in_context.costs_elsewhere(others, [8.0, 8.0]))] == [4, 8]
    choices = [PlacedChoice((1,), Piece.of(made), 2.0, frozenset([made]))]
    costs.in_context.learn(Observation(3.0, ((frozenset([made]), 3.0),)), choices)
    wider = Piece.of(kernel(X, source("z", TensorType("float32", (64, 72)))))
    assert [*map(round, costs.in_context.costs_elsewhere([others[0], wider], [8.0, 8.0]))] == [4, 12]


@dataclass
class Listed:
    """The choices of a program that runs each piece at one place."""

    pieces: list[Piece]

    @property
    def keys(self) -> list[int]:
        return [*range(len(self.pieces))]

    def place(self, number: int) -> int:
        return number


def test_a_measurement_shows_which_others_save_nothing() -> None:
    """Of two products each seemed to save 0.1 ms; the first takes ten times its estimate."""
    small, large = (
        Piece.of(node("MatMul", *(source(f"{name}{n}", TensorType("float32", (n, n))) for name in "ab")))
        for n in (60, 64)
    )
    told = Told({large.text: 10 * estimate(large)})
    prices = Prices(Costs(told), Listed([small, large]))  # type: ignore[arg-type]
    assert not prices.are_measured({0: 0, 1: 1}) and not prices.are_measured({0: 0})
    assert prices.are_measured({0: 1}) and prices.are_measured({0: 0}, kernels_only=True)
    before = prices.standalone[0]
    prices = Prices(costs := Costs(Told()), Listed([small, large]))  # type: ignore[arg-type]
    # before any measurement nothing is skipped, not even what seems to save nothing: a search would never end
    assert not any(prices.has_lost_gain(0, gain, 1) for gain in (1e-4, 0.0, -1.0))
    costs.standalone = told
    prices.measure(1)
    raised = 10 * OPTIMISM * estimate(small) - prices.standalone[0]
    assert raised > 0 and before > prices.standalone[0]
    for places in (1, 3):
        assert prices.has_lost_gain(0, 0.99 * places * raised, places)
        assert not prices.has_lost_gain(0, 1.01 * places * raised, places)
    told.seconds.clear()
    prices.update()  # what follows from the measurement is the estimate now
    assert isclose(prices.standalone[0], 10 * OPTIMISM * estimate(small))
    assert not prices.has_lost_gain(0, -1.0, 1)


def test_what_is_measured_next_follows_from_what_kernels_like_it_took() -> None:
    """Of two kernels that seem to save as much, the one of a slow kind comes last; operators come first."""
    shapes = [TensorType("float32", (n, 64)) for n in (60, 64, 68)]
    slow, new, fast = (Piece.of(kernel(source("z", kind), Y)) for kind in shapes)
    pieces = [slow, new, fast, Piece.of(node("Relu", X))]
    told = Told(kernels={slow.text: 3 * PRODUCT_SECONDS, fast.text: 1e-3 * PRODUCT_SECONDS})
    prices = Prices(Costs(told), Listed(pieces))  # type: ignore[arg-type]
    assert prices.keys_to_measure({0: 1.0, 1: 2.0, 3: 0.5}) == {0: 1.0, 1: 2.0, 3: 0.5}
    gains, places = dict.fromkeys(range(4), PRODUCT_SECONDS), dict.fromkeys(range(4), 2)
    ranked = prices.rank_by_expected_gain(gains, places)
    assert [*ranked] == [3, 1, 2, 0]
    assert ranked[1] == ranked[2] == ranked[3] == PRODUCT_SECONDS
    loss = 2 * (TYPICAL_MULTIPLE - 1) * 3 * PRODUCT_SECONDS
    assert isclose(ranked[0], PRODUCT_SECONDS - loss)
    assert [*prices.rank_by_expected_gain({0: 9 * PRODUCT_SECONDS, 1: PRODUCT_SECONDS}, places)] == [0, 1]


def test_a_program_with_an_untuned_kernel_is_not_known() -> None:
    """It would run as many operators of the runtime."""
    pieces = [Piece.of(kernel(X, Y)), Piece.of(node("Relu", X))]
    prices = Prices(Costs(Told({pieces[1].text: 1.0})), Listed(pieces))  # type: ignore[arg-type]
    assert not prices.are_measured({0: 0}, kernels_only=True)
    assert prices.are_measured({0: 1}, kernels_only=True)
    prices.is_measured[0] = True
    assert prices.are_measured({0: 0, 1: 1})


def test_an_operator_has_its_share_of_all_kernels_that_compute_it() -> None:
    """onnxruntime runs a MatMul and an Add as a Reshape, a Gemm and a Reshape, each of both operators."""
    shifted = node("Add", PRODUCT, X)
    both, times = frozenset({PRODUCT, shifted}), (3e-6, 120e-6, 3e-6)
    costs = Costs(Told())
    run = Observation(sum(times), tuple((both, taken) for taken in times))
    costs.learn(run, {}, Prices(costs, Listed([])), 0)  # type: ignore[arg-type]
    seen = [costs.in_context.observed_seconds(Piece.of(one)) for one in (PRODUCT, shifted)]
    assert None not in seen and isclose(sum(seen), sum(times))  # type: ignore[arg-type]
    shares = [estimate(Piece.of(one)) for one in (PRODUCT, shifted)]
    assert isclose(seen[0] / seen[1], shares[0] / shares[1])  # type: ignore[operator]
