"""How far the evidence of a rule goes, and what shows an equality that lies beyond.

A proof is of some ranks, of the values that attributes have in examples, of tuples of up to so many numbers;
a test of what its instances had.  A match within that is an instance of what was shown.  Any other is none,
unless both sides are equal at its own types: by their canonical forms, or by Z3 in a moment.

Sizes have no limit in a proof, but that they are 1 at least.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from math import inf
from typing import Any, NamedTuple

from tensaurus.expr.ir.scope import Const, Scope, Source, Tensor, call, compute
from tensaurus.expr.sizes.size import is_same_size
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.rules.language.evidence import Evidence, Proved, Tested
from tensaurus.rules.language.occurrences import inner_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import Fact, Undefined
from tensaurus.rules.language.term import Variable
from tensaurus.rules.prove.attribute_domain import KNOWN, tried
from tensaurus.rules.prove.expression_prover import Open, equal_over

__all__ = ["Limits", "common_coverage", "covered", "shown"]

HERE = "at these types"
NEVER = "never varied: "
TYPES = "element types "
RANKED = re.compile(r"ranks (\d+)-(\d+)")
VALUES = re.compile(r"[\w.]+=(?:\([^()]*\)|[^\s,()]+)")
PARTS = {  # of what evidence says, by what each is about
    "ranks": r"\branks\b|\d instances",
    "ones": r"^sizes of one in",
    "types": f"^{TYPES}",
    "never": f"^{NEVER}",
    "triples": r"% of triples",
    "reals": r"^all reals at",
}


class Given(NamedTuple):
    """An attribute that a match gives a value: to a name, or under its own in a rest."""

    op: Op
    attribute: str
    name: str
    key: str | None
    first: str | None  # the variable that is the operator's first argument

    @property
    def said(self) -> str:
        """As coverage says it."""
        return self.name if self.key is None else f"{self.name}.{self.key}"

    def value(self, values: Mapping[str, Any]) -> Any:
        """What a match gives it."""
        return values[self.name] if self.key is None else values[self.name][self.key]


@dataclass(frozen=True)
class Limits:
    """Of one rule, as its evidence says them."""

    rule: Rule

    @cached_property
    def said(self) -> str:
        """What was covered: nothing is said where everything was."""
        return covered(self.rule.evidence)

    @cached_property
    def rank(self) -> float:
        """The largest that a variable may have."""
        return _number(r"ranks \d+-(\d+)", self.said)

    @cached_property
    def least(self) -> float:
        """The least that the largest may be: where a proof begins, no lower one has a match."""
        found = re.search(r"ranks (\d+)-", self.said)
        return float(found[1]) if found and isinstance(self.rule.evidence, Tested) else 0

    @cached_property
    def ones(self) -> float:
        """The largest rank in which a size of 1 may meet another."""
        return _number(r"sizes of one in broadcasting to rank (\d+)", self.said)

    @cached_property
    def types(self) -> frozenset[str]:
        """The element types that there were; none where any may be."""
        found = re.search(r"element types ([a-z0-9 ]+)", self.said)
        return frozenset(found[1].split()) if found else frozenset()

    @cached_property
    def constant(self) -> Mapping[str, str]:
        """Attributes that had one value in all instances, as text."""
        _, _, told = self.said.partition(NEVER)
        return dict(re.findall(r"([\w.]+)=(\([^()]*\)|[^\s,()]+)", told))

    @cached_property
    def given(self) -> Sequence[Given]:
        """The attributes that the left side leaves open, as far as a proof may have left out some values."""
        found: list[Given] = []
        for term in (a for root in self.rule.lhs for a in inner_first(root)):
            first = term.args[0].name if term.args and isinstance(term.args[0], Variable) else None
            fixed = {name for name, _ in term.attrs}
            for name, tree in term.attrs:
                if isinstance(tree, ast.Name):
                    found.append(Given(term.op, name, tree.id, None, first))
            for name in term.op.attributes if term.rest is not None else ():
                if name not in fixed:
                    found.append(Given(term.op, name, str(term.rest), name, first))
        return found

    @cached_property
    def _asked(self) -> Sequence[Given]:
        """Those of which a proof says so, or all where it went from rank to rank."""
        if isinstance(self.rule.evidence, Proved) and self.rank < inf:
            return self.given
        told = re.findall(r", ([\w ]+?) (?:as in|of up to|whole)", self.said)
        names = {name for each in told for name in each.split(" and ")}
        return [each for each in self.given if each.attribute in names]

    @cached_property
    def none(self) -> bool:
        """Whether the evidence covers every match."""
        bounded = self.rank < inf or self.ones < inf
        return not bounded and not self.types and not self.constant and not self._asked

    def within(self, facts: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Whether the evidence covers a match: `facts` of its variables, `values` of its attributes."""
        if self.none:
            return True
        shapes = {name: facts[name].shape for name in self.rule.variables if name in facts}
        highest = max(map(len, shapes.values()), default=0)
        if not self.least <= highest <= self.rank:
            return False
        if highest > self.ones and _broadcasts(list(shapes.values())):
            return False
        if isinstance(self.rule.evidence, Proved) and 0 in chain.from_iterable(shapes.values()):
            return False
        if self.types and any(facts[name].dtype not in self.types for name in shapes):
            return False
        for each in self.given if self.constant else ():
            if str(each.value(values)) != self.constant.get(each.said, str(each.value(values))):
                return False
        ranks = {name: len(shape) for name, shape in shapes.items()}
        return all(
            tried(each.op, each.attribute, ranks.get(each.first or "", highest), each.value(values))
            for each in self._asked
        )


def covered(evidence: Evidence | None) -> str:
    """Return what the evidence says that it covers, and what limits it."""
    match evidence:
        case Proved(_, covers):
            return covers
        case Tested(_, coverage):
            return coverage
    return ""


def common_coverage(said: Sequence[str]) -> str:
    """Return what is covered wherever each of these is, in the words of the first.

        ranks 0-5, sizes of one in broadcasting to rank 2    and    ranks 1-4, axes of up to the rank
        ranks 0-4, sizes of one in broadcasting to rank 2, axes of up to the rank
    """
    parts: dict[str, list[str]] = {}  # by what they are about, that is by their words without numbers
    for text in said:
        for part in re.split(r", (?![^(]*\))", text):
            found = next((kind for kind, pattern in PARTS.items() if re.search(pattern, part)), part)
            parts.setdefault(found, []).append(part)
    if any(RANKED.search(text) for text in said):
        parts["ranks"] = [part for part in parts["ranks"] if RANKED.search(part)]
    if " instances" in said[0]:  # what proofs of others say of all sizes
        parts = {kind: each for kind, each in parts.items() if kind not in ("all sizes", "all reals")}
    return ", ".join(filter(None, (_common(kind, each) for kind, each in parts.items())))


def _common(kind: str, parts: Sequence[str]) -> str:
    first = parts[0]
    if kind == "ranks":
        ends = [(int(low), int(high)) for part in parts for low, high in RANKED.findall(part)]
        high = min((high for _, high in ends), default=0)
        low = min(high, max(low for low, _ in ends) if " instances" in first else ends[0][0]) if ends else 0
        counts = [int(found[1]) for part in parts if (found := re.match(r"(\d+) instances", part))]
        counted = re.sub(r"^\d+(?= instances)", str(min(counts, default=0)), first)
        return RANKED.sub(f"ranks {low}-{high}", counted)
    if kind == "types":
        named = [part.removeprefix(TYPES).split() for part in parts]
        return TYPES + " ".join(t for t in named[0] if all(t in others for others in named))
    if kind == "never":
        told = [name for part in parts for name in VALUES.findall(part.removeprefix(NEVER))]
        return NEVER + " ".join(dict.fromkeys(told))
    return min(parts, key=lambda part: [int(number) for number in re.findall(r"\d+", part)])


def _number(pattern: str, said: str) -> float:
    found = re.search(pattern, said)
    return float(found[1]) if found else inf


def _broadcasts(shapes: Sequence[tuple[Any, ...]]) -> bool:
    """Whether a size of 1 meets another, counted from the last."""
    return any(
        is_same_size(n, 1) != is_same_size(m, 1)
        for first, second in combinations(shapes, 2)
        for n, m in zip(first[::-1], second[::-1], strict=False)
    )


def shown(
    left: Sequence[Node],
    right: Sequence[Node],
    nodes: Mapping[str, Node],
    facts: Mapping[str, Fact],
) -> Evidence | None:
    """Why the sides of a match are equal at its own types; None where nothing shows it."""
    leaves: dict[Node, Source] = {node: _source(name, node, facts[name]) for name, node in nodes.items()}

    def leaf(node: Node) -> Source | None:
        return leaves.get(node) or (_constant(node) if node.op is CONSTANT else None)

    used = set[str]()
    for old, new in zip(left, right, strict=True):
        if 0 in old.tensor.shape:
            continue  # nothing that could differ
        try:
            verdict = equal_over(old, new, leaf)
        except (Untypable, RecursionError, *KNOWN):
            return None
        if isinstance(verdict, Open):
            return None
        used.add(verdict.by)
    return Proved("z3", f"all reals, {HERE}") if "z3" in used else Proved("algebra", HERE)


def _source(name: str, node: Node, fact: Fact) -> Source:
    """What a variable is in both expressions: a constant of one number is that number."""
    kind = node.tensor
    try:
        return _filled(kind, fact.filled)
    except Undefined:
        return Tensor(name, kind.shape, kind.dtype, fact.static and fact.positive)


def _constant(node: Node) -> Source:
    """A number that the rule writes."""
    return _filled(node.tensor, Fraction(node.attribute("data").array.item()))


def _filled(kind: TensorType, number: Fraction) -> Scope:
    return compute(kind.shape, lambda *_: call(f"to_{kind.dtype}", Const(number)))
