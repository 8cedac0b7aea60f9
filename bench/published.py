"""Equalities that published systems use: which of them does the library derive, from the left side alone?

laws/published.jsonl has them, one a line: of the papers' tables and figures, and of what the documentation of
compilers and runtimes says of their simplifiers.  They were written by somebody who had read no rule of ours,
but for the last section, of variants that our conditions suggest.
Both sides are evaluated on numbers first; then the left side is explored as `optimize` does it, with the
usual rules and after these with those of long searches, and the right side is asked for.  Where both are
computed from constants alone, equal numbers count.  Writes tables/published.md.

    python bench/published.py [--part TEXT] [--nodes N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from tensaurus.egraph.core.egraph import EGraph
from tensaurus.egraph.core.finder_protocol import find_all
from tensaurus.egraph.match.commuting_calls import commute
from tensaurus.egraph.match.flatten_nested_calls import flatten
from tensaurus.egraph.match.saturate import Limits, saturate
from tensaurus.expr.evaluate.fields import Reals
from tensaurus.graph.ir.node import Node, apply, constant, item, source
from tensaurus.ops import TensorType
from tensaurus.ops.declare import attribute_value
from tensaurus.optimizer.search.strategies import Rulesets
from tensaurus.rules.language.rule import library
from tensaurus.rules.language.side_conditions import evaluate_expression
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable, parse_terms
from tensaurus.rules.test.verify_rule import evaluate_roots
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.system.files import replace_file

HERE = Path(__file__).parent
TYPES = {"": "float32", "f64": "float64", "i64": "int64", "i32": "int32", "u8": "uint8", "i8": "int8"}
TYPES |= {"b": "bool"}
FINDERS = (flatten, commute)
SECONDS = 60.0  # of one exploration
TRIALS = 6  # of numbers
TOLERANCE = 1e-10
ALIKE = 2e-6  # constants that differ by so little are one, which float32 rounds


@dataclass(frozen=True)
class Law:
    """One line of the file.

    inputs     types by name: "2,3", or "i64:3<4" for integers below 4
    constants  likewise, or their numbers
    """

    section: str
    source: str
    law: str
    left: str
    right: str
    inputs: Mapping[str, str]
    constants: Mapping[str, Any]
    positive: Sequence[str] = ()
    small: Sequence[str] = ()
    tolerance: float = TOLERANCE

    def leaves(self) -> dict[str, Node]:
        found = {name: source(name, _type(text)[0]) for name, text in self.inputs.items()}
        for seed, (name, said) in enumerate(self.constants.items(), 1):
            if isinstance(said, str):
                shape = _type(said)[0].shape
                data = np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)
            else:
                data = np.array(said["data"], said["dtype"]).reshape(said["shape"])
            found[name] = constant(data)
        return found

    def sides(self, leaves: Mapping[str, Node]) -> tuple[list[Node], list[Node]]:
        terms = map(parse_terms, (self.left, self.right))
        left, right = ([_built(term, leaves) for term in side] for side in terms)
        assert [root.types for root in left] == [root.types for root in right], self.law
        return left, right

    def values(self, leaves: Mapping[str, Node], seed: int) -> dict[Node, Any]:
        """Numbers for the inputs."""
        rng, field, found = np.random.default_rng(seed), Reals(), {}
        for name, text in self.inputs.items():
            kind, most = _type(text)
            if kind.dtype == "bool":
                data = rng.integers(0, 2, kind.shape).astype(bool)
            elif kind.dtype.startswith("float"):
                data = rng.normal(size=kind.shape) * 2
                data = np.clip(data / 5, -0.9, 0.9) if name in self.small else data
                data = np.abs(data) + 0.1 if name in self.positive else data
            else:
                low, high = {"uint8": (0, 256), "int8": (-128, 128)}.get(kind.dtype, (-50, 50))
                low, high = (0, most) if most else (low, high)
                data = rng.integers(max(low, 1) if name in self.positive else low, high, kind.shape)
            found[leaves[name]] = field.lift(data.astype(kind.dtype))
        return found

    def gap(self) -> float:
        """By how much the sides differ on numbers, relatively, at most."""
        leaves = self.leaves()
        left, right = self.sides(leaves)
        worst = 0.0
        for seed in range(TRIALS):
            values = self.values(leaves, seed)
            sides = (evaluate_roots(roots, dict(values), Reals()) for roots in (left, right))
            for a, b in zip(*sides, strict=True):
                x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
                with np.errstate(all="ignore"):
                    same = (x == y) | np.isnan(x) & np.isnan(y)
                    differ = np.where(same, 0, np.abs(x - y) / (1 + np.abs(x)))
                worst = max(worst, float(np.nan_to_num(differ, nan=np.inf).max(initial=0)))
        return worst


def _type(text: str) -> tuple[TensorType, int]:
    kind, _, rest = text.rpartition(":")
    sizes, _, most = rest.partition("<")
    shape = tuple(int(n) for n in sizes.split(",") if n)
    return TensorType(TYPES[kind], shape), int(most or 0)


def _built(term: Term, leaves: Mapping[str, Node], dtype: str = "float32", several: bool = False) -> Node:
    """Numbers are of float32, or of what they meet, as models have them."""
    match term:
        case Variable(name):
            return leaves[name]
        case Literal(value):
            return constant(np.array(float(value)).astype(dtype))
        case Item(inner, int() as index):
            return item(_built(inner, leaves, dtype, True), index)
        case Apply(op, args):
            attrs = {name: attribute_value(evaluate_expression(tree, {})) for name, tree in term.attrs}
            others = {k: a for k, a in enumerate(args) if not isinstance(a, Literal | None)}
            made = {k: _built(a, leaves, dtype) for k, a in others.items()}
            met = next((n.types[0].dtype for n in made.values() if n.types[0].dtype != "bool"), dtype)
            made |= {k: _built(a, leaves, met) for k, a in enumerate(args) if isinstance(a, Literal)}
            return apply(op, [made.get(k) for k in range(len(args))], attrs, 0 if several else 1)
    raise TypeError(term)


class _Same:
    """Why two constants are one."""

    def evidence(self, graph: EGraph) -> tuple[list[Any], list[Any]]:
        return [], []


@cache
def _rules() -> Rulesets:
    return Rulesets.compile(library())


def derived(law: Law, nodes: int, rounds: int) -> bool:
    left, right = law.sides(law.leaves())
    simplifying, usual, every = _rules()
    graph = EGraph()
    numbers = [graph.insert_term(root) for root in left]
    graph.rebuild()
    limits = Limits(nodes=nodes, rounds=rounds, multi=2, deadline=monotonic() + SECONDS)
    saturate(graph, usual, limits, simplifying=simplifying, later=every, finders=FINDERS)
    find_all(graph, FINDERS, 2 * nodes)
    others = [graph.insert_term(root) for root in right]
    graph.rebuild()
    for _ in range(3):
        find_all(graph, FINDERS, 4 * nodes)
        if all(graph.find(a) == graph.find(b) for a, b in zip(numbers, others, strict=True)):
            return True
        if not _folded(graph):
            return False
        graph.rebuild()
    return False


def _folded(graph: EGraph) -> bool:
    """Whether classes of constants that hold the same numbers were two."""
    known: dict[Any, list[tuple[int, Any]]] = {}
    merged = False
    for group in list(graph.classes):
        about = graph.analyses[group]
        if not about.static or about.tensor is None:
            continue
        try:
            with np.errstate(all="ignore"):
                own = np.asarray(
                    evaluate_roots([graph.term(min(graph.live_members(group)))], {}, Reals())[0], np.float64
                )
        except (ValueError, TypeError, ArithmeticError, NotImplementedError):
            continue
        alike = known.setdefault(about.types, [])
        for other, theirs in alike:
            near = {"rtol": ALIKE, "atol": ALIKE / 20, "equal_nan": True}
            if theirs.shape == own.shape and np.allclose(theirs, own, **near):
                merged |= graph.union(group, other, _Same())
                break
        else:
            alike.append((group, own))
    return merged


def _asked(job: tuple[Law, int, int]) -> tuple[Law, bool]:
    law, nodes, rounds = job
    gap = law.gap()
    if gap > law.tolerance:
        raise ValueError(f"{law.source}, {law.law}: the sides differ by {gap:.1e}")
    return law, any(derived(law, n, r) for n, r in ((nodes // 6, rounds - 3), (nodes, rounds)))


def laws(part: str) -> list[Law]:
    lines = (HERE / "laws" / "published.jsonl").read_text("utf-8").splitlines()
    every = [Law(**{"constants": {}, **json.loads(line)}) for line in lines]
    return [law for law in every if part in f"{law.section} {law.source} {law.law}"]


def page(outcome: Sequence[tuple[Law, bool]], seconds: float, nodes: int, rounds: int) -> str:
    count = Counter(law.section for law, _ in outcome)
    yes = Counter(law.section for law, found in outcome if found)
    lines = [
        "# Laws of published systems",
        "",
        "Made by `python bench/published.py`, not edited by hand.",
        "",
        f"On {Machine.here().key}: {yes.total()} of {count.total()} are derived from the left side alone,"
        f" within {nodes:,} e-nodes and {rounds} rounds; {seconds / 60:.0f} minutes.",
        "",
        "| of | laws | derived |",
        "| --- | ---: | ---: |",
        *(f"| {section} | {count[section]} | {yes[section]} |" for section in count),
        "",
        "Those that are not: some are untrue of what is no number, or of infinities, or lose digits, and are"
        " no rules for that; some need what a constant holds; the others are missing.",
        "",
    ]
    for section in count:
        missing = [law for law, found in outcome if law.section == section and not found]
        lines += [f"## {section}", ""]
        lines += [f"- {law.source}, {law.law}: `{law.left} = {law.right}`" for law in missing]
        lines += [""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="", help="of a section, a source or a law's name")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    began = monotonic()
    jobs = [(law, options.nodes, options.rounds) for law in laws(options.part)]
    outcome: list[tuple[Law, bool]] = []
    with get_context("spawn").Pool(Machine.here().threads) as pool:
        for law, found in pool.imap(_asked, jobs, chunksize=4):
            outcome.append((law, found))
            if options.part:
                print(f"{'derived' if found else 'NOT'}  {law.source}, {law.law}", flush=True)
    text = page(outcome, monotonic() - began, options.nodes, options.rounds)
    if options.part:
        print(f"{sum(found for _, found in outcome)} of {len(outcome)}")
        return
    with replace_file(HERE / "tables" / "published.md") as beside:
        beside.write_text(text, encoding="utf-8")
    print(text.splitlines()[4])


if __name__ == "__main__":
    main()
