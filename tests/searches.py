"""A small search by saturation, and what its tests ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from explored import LIMITS
from small_programs import X, Y, Z, node, rules

from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection
from tensaurus.egraph.match.saturate import Ruleset
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.graph.ir.program_text import format_program, workload  # noqa: F401, another process shows programs
from tensaurus.ops import Op
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.saturation import Saturation
from tensaurus.runtimes.price.roofline import estimate


def extract(problem: Problem, seconds: float, start: Selection | None) -> dict[int, int]:
    return quick_extraction(problem, start)


@dataclass
class Made:
    """Prices that are made up: of a piece, the sum over its operators; what was measured is remembered."""

    by_operator: Mapping[str, float]
    guess: Callable[[Piece], float] = estimate
    seen: list[str] = field(default_factory=list)
    interrupted_after: int = 10**9

    def price(self, piece: Piece) -> float:
        names = [str(n.op) for n in piece.inner if isinstance(n.op, Op)]
        return sum(self.by_operator.get(name, 1.0) for name in names)

    def known(self, piece: Piece) -> float | None:
        return self.price(piece) if piece.text in self.seen else None

    def measure(self, piece: Piece) -> float:
        if len(self.seen) >= self.interrupted_after:
            raise KeyboardInterrupt
        self.seen.append(piece.text)
        return self.price(piece)

    def estimate(self, piece: Piece) -> float:
        return self.guess(piece)

    def product_seconds(self, piece: Piece) -> float:
        return 0.0

    def kernel_seconds(self, piece: Piece) -> float:
        return 0.0

    def note_observed(self, piece: Piece, seconds: float) -> None:
        """Finders, which ask for times, would be told."""

    def total(self, whole: Program) -> float:
        return sum(self.price(Piece.of(n)) for n in whole.active if isinstance(n.op, Op))


def search(whole: Program, prices: Made, ruleset: Ruleset, **options: object) -> Outcome:
    given = {"extractors": [extract], "exploration_limits": LIMITS, **options}
    return Saturation(ruleset, prices, **given).run(whole)  # type: ignore[arg-type]


LAWS = Ruleset(
    rules(
        "Add(x, y) => Add(y, x)",
        "Add(Mul(x, z), Mul(y, z)) => Mul(Add(x, y), z)",
        "Mul(Add(x, y), z) => Add(Mul(x, z), Mul(y, z))",
    )
)

FACTORED = node("Mul", node("Add", X, Y), Z)

SPREAD = node("Add", node("Mul", X, Z), node("Mul", Y, Z))
