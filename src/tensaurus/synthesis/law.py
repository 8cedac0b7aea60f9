"""A law of terms as a rewrite rule: said as generally as it can be proved.

Terms of a world have types and attributes; a rule has neither, unless a condition asks for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tensaurus.rules.evidence import Proved
from tensaurus.rules.rule import Rule, parse_rule
from tensaurus.rules.term import RuleError
from tensaurus.rules.verify import verify
from tensaurus.synthesis.order import key, variables
from tensaurus.synthesis.terms import Term
from tensaurus.synthesis.world import World

__all__ = ["Stated", "state"]

NAMES = "xyzwuvst"
INSTANCES = 12
SECONDS, SHORT = 20.0, 6.0  # for a proof, and for one of a law that is said more generally


@dataclass(frozen=True)
class Stated:
    """What a law is said as: its rules with their evidence, or the reasons why there are none."""

    text: str
    rules: tuple[Rule, ...] = ()
    evidence: Proved | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Saying:
    """Both sides as text, and the arrow between them."""

    left: str
    arrow: str
    right: str

    def where(self, conditions: Iterable[str]) -> str:
        said = ", ".join(conditions)
        return f"{self.left} {self.arrow} {self.right}" + (f" where {said}" if said else "")


def _sayings(first: Term, second: Term, names: Mapping[Term, str]) -> Iterator[_Saying]:
    """With names for attributes, and with what they are."""
    both = set(variables(first)) == set(variables(second)) and second not in _parts(first)
    for attributes in _attributes(first, second):
        # a name for attributes must be bound by the side that is matched
        bound = _symmetric(first, second) or not any(map(_named, attributes.values()))
        arrow = "<=>" if both and bound else "=>"
        yield _Saying(_said(first, names, attributes), arrow, _said(second, names, attributes))


def _parts(term: Term) -> Iterator[Term]:
    yield term
    for part in term[1:] if term[0] != "x" else ():
        yield from _parts(part)


def _symmetric(first: Term, second: Term) -> bool:
    """Whether each side has every operator of the other, so that either may be matched."""
    return set(map(str, _all(first))) == set(map(str, _all(second)))


def _attributes(first: Term, second: Term) -> Iterator[dict[str, str]]:
    """What is written for the attributes of each use: one name for all, or what they are."""
    uses = {str(u): u for u in (*_all(first), *_all(second)) if u.attrs}
    if uses:
        counts = Counter(u.op.name for u in uses.values())
        on_left = {str(u) for u in _all(first)}
        if all(number == 1 for number in counts.values()) and set(uses) <= on_left:
            rests = [f"**{name}" for name in "abcdefgh"]
            yield {text: rests[k] for k, text in enumerate(uses)}
            one = {
                text: ", ".join(f"{name}={place}{k}" for k, name in enumerate(u.attrs))
                for place, (text, u) in zip("pqr", uses.items(), strict=False)
            }
            if len(one) == len(uses):
                yield one
    yield {text: ", ".join(f"{n}={v!r}" for n, v in u.attrs.items()) for text, u in uses.items()}


def _named(attributes: str) -> bool:
    return attributes.startswith("**") or bool(re.search(r"=[pqr]\d", attributes))


def _all(term: Term) -> Iterator[Any]:
    if term[0] != "x":
        yield term[0]
        for part in term[1:]:
            yield from _all(part)


def _said(term: Term, names: Mapping[Term, str], attributes: Mapping[str, str]) -> str:
    if term[0] == "x":
        return names[term]
    parts = [_said(part, names, attributes) for part in term[1:]]
    own = attributes.get(str(term[0]), "")
    return f"{term[0].op.name}({', '.join([*parts, *([own] if own else [])])})"


def state(world: World, left: Term, right: Term, known: Container[str]) -> Stated:
    """The law as a rule, said as generally as it is proved; what is `known` needs no proof.

    Without conditions, where that holds; else with all that its variables' types suggest, of which as many
    are taken away, one after the other, as are not needed.
    """
    first, second = sorted((left, right), key=key, reverse=True)
    if not set(variables(second)) <= set(variables(first)):
        first, second = second, first
    names = {x: NAMES[k] for k, x in enumerate(dict.fromkeys((*variables(first), *variables(second))))}
    if not set(variables(second)) <= set(variables(first)):
        text = f"{_said(first, names, {})} = {_said(second, names, {})}"
        return Stated(text, reasons=("each side has a variable that the other lacks",))
    reasons: list[str] = []
    text = ""
    for saying in _sayings(first, second, names):
        if (text := saying.where(())) in known:
            return Stated(text)
        if isinstance(found := _proved(text, SECONDS), Stated):
            return found
        every = _conditions(world, names)
        found = _proved(saying.where(every), SECONDS)
        if isinstance(found, Stated):
            return _weakened(world, saying, names, every, found)
        reasons.append(found)
    return Stated(text, reasons=tuple(reasons))


def _weakened(
    world: World, saying: _Saying, names: Mapping[Term, str], every: list[str], found: Stated
) -> Stated:
    """With as few conditions as it is still proved with, by no weaker proof."""
    by = found.evidence.by if found.evidence is not None else ""

    def holds(conditions: list[str]) -> bool:
        nonlocal found
        made = _proved(saying.where(conditions), SHORT)
        if not isinstance(made, Stated) or made.evidence is None or made.evidence.by != by:
            return False
        found = made
        return True

    ranks = [c for c in every if c.startswith("rank(")]
    left = [c for c in every if c not in ranks]
    for condition in left:
        rest = [c for c in left if c != condition]
        if holds([*rest, *ranks]):
            left = rest
    least = [c.replace("==", ">=") for c in ranks]
    any(holds([*left, *each]) for each in ([], least))
    return found


def _proved(text: str, seconds: float) -> Stated | str:
    """The law as it is said here, where it is proved; else why it is not."""
    try:
        rules = parse_rule(f"law: {text}")
    except RuleError as error:
        return str(error)
    evidence: list[Proved] = []
    for rule in rules:
        found = verify(rule, INSTANCES, seconds=seconds)
        if not isinstance(found, Proved):
            return str(getattr(found, "reason", found))[:200]
        evidence.append(found)
    return Stated(text, tuple(rules), max(evidence, key=lambda each: each.by))


def _conditions(world: World, names: Mapping[Term, str]) -> list[str]:
    """What the types of the variables suggest."""
    wide = {x: name for x, name in names.items() if world.kinds[x[1]].shape}
    scalars = [f"numel({name}) == 1" for x, name in names.items() if x not in wide]
    alike = [f"shape({wide[a]}) == shape({wide[b]})" for a, b in combinations(wide, 2) if a[1] == b[1]]
    ranks = [f"rank({name}) == {len(world.kinds[x[1]].shape)}" for x, name in wide.items()]
    return [*scalars, *alike, *ranks]
