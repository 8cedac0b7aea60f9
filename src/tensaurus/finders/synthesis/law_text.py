"""A law of terms as text: the ways to say it, the most general first.

Attributes are what they are in the world, or names, which stand for any; an axis is counted from where ranks
agree; an output of several is one of them, or any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.term_order import variables
from tensaurus.finders.synthesis.terms import Term, subterms

__all__ = ["MATRIX", "Saying", "attributes_of", "call", "named", "said", "sayings"]

NAMED = "abcdefgh"  # attributes
OUTPUT = "i"  # the number of one
MATRIX = 2  # the rank of one


@dataclass(frozen=True)
class Saying:
    """Both sides as text, and the arrow between them."""

    left: str
    arrow: str
    right: str

    @property
    def named(self) -> bool:
        """Whether attributes are any that there are, in part."""
        return re.search(r"\*\*|=[a-z]\d+\b|\[[a-z]\]", f"{self.left} {self.right}") is not None

    def where(self, conditions: Iterable[str]) -> str:
        said = ", ".join(conditions)
        return f"{self.left} {self.arrow} {self.right}" + (f" where {said}" if said else "")


def sayings(first: Term, second: Term, names: Mapping[Term, str], back: bool) -> Iterator[Saying]:
    """With names for attributes, and with what they are; in both directions where it may be said `back`."""
    both = back and set(variables(first)) == set(variables(second)) and second not in subterms(first)
    outputs = [{use.output for use in _all(side) if use.outputs > 1} for side in (first, second)]
    alike = len(outputs[0]) == 1 and outputs[1] <= outputs[0]
    for attributes in attributes_of(first, second):
        for output in (OUTPUT, "") if alike else ("",):  # the same one of every operator that has several
            left, right = (said(side, names, attributes, output) for side in (first, second))
            # a name for attributes, or an output, must be bound by the side that is matched
            bound = named(left) <= named(right) and (outputs[0] == outputs[1] or not output)
            yield Saying(left, "<=>" if both and bound else "=>", right)


def attributes_of(first: Term, second: Term) -> Iterator[dict[str, str]]:
    """What is written for the attributes of each use, the most general first.

    For an operator that is used in one way one name for all of them, or for all but a number, which is what
    it is there; else names for tuples, the same for equal ones, then for those of any numbers alone, then
    what they are.  Last a name for each that is given.
    """
    uses = _with_attributes(first, second)
    counts = Counter(u.name for u in uses.values())
    on_left = {call(u) for u in _all(first)}
    plain, named = list(_written(uses)), _tuples(uses.values())
    sizes = {each: name for each, name in named.items() if each in _of_any_numbers(uses.values())}
    with_names = [*_written(uses, named), *_written(uses, sizes)]
    ways: list[list[str]] = []
    for (text, use), rest in zip(uses.items(), NAMED, strict=False):
        own = list(dict.fromkeys(each[text] for each in (*with_names, *plain)))
        if counts[use.name] == 1 and text in on_left:
            numbers = {name: n for name, n in use.defaults.items() if isinstance(n, int)}
            numbers = numbers if len(use.defaults) > 1 else {}
            given = {name: use.attrs.get(name, n) for name, n in numbers.items()}
            fixed = [
                f"{name}={_place(use, name, n, usual)}, **{rest}"
                for usual in (True, False)
                for name, n in given.items()
            ]
            own = [f"**{rest}", *dict.fromkeys(fixed), *own]
        ways.append(own)
    places = product(*(range(len(own)) for own in ways))
    for chosen in sorted(places, key=lambda each: (sum(each), each)):
        yield {text: own[place] for text, own, place in zip(uses, ways, chosen, strict=True)}
    if 0 < len(uses) <= len("pqr") and all(counts[u.name] == 1 and t in on_left for t, u in uses.items()):
        yield {
            text: ", ".join(f"{name}={place}{k}" for k, name in enumerate(u.attrs))
            for place, (text, u) in zip("pqr", uses.items(), strict=False)
        }


def _tuples(uses: Iterable[Use]) -> dict[tuple[str, Any], str]:
    """Names for the tuples among attributes, by attribute and value."""
    given = dict.fromkeys((name, n) for u in uses for name, n in u.attrs.items() if isinstance(n, tuple))
    return {each: f"s{place}" for place, each in enumerate(given)}


def _of_any_numbers(uses: Iterable[Use]) -> set[tuple[str, Any]]:
    """Attributes, with their values, that have any numbers wherever they are given: no axes, or steps."""
    given = [((name, n), use.any_numbers(name)) for use in uses for name, n in use.attrs.items()]
    return {each for each, _ in given} - {each for each, numbers in given if not numbers}


def call(use: Use) -> str:
    """What outputs of one operator share."""
    return str(use).partition(")[")[0]


def _with_attributes(*terms: Term) -> dict[str, Use]:
    return {call(use): use for term in terms for use in _all(term) if use.attrs}


def _written(
    uses: Mapping[str, Use], names: Mapping[tuple[str, Any], str] | None = None
) -> Iterator[dict[str, str]]:
    """What attributes are, or names: first with axes as they are usually counted."""
    given: dict[str, str] = {}
    names = names or {}

    def said(use: Use, name: str, value: Any, usual: bool) -> str:
        return names[name, value] if (name, value) in names else _place(use, name, value, usual)

    for usual in (True, False):
        own = {
            text: ", ".join(f"{name}={said(use, name, value, usual)}" for name, value in use.attrs.items())
            for text, use in uses.items()
        }
        if own != given:
            yield (given := own)


def _place(use: Use, name: str, value: Any, usual: bool) -> str:
    """A value; of an axis where it is, or counted from the end, which says more of batches of matrices."""
    from_end = use.from_end(name, value)
    ends = from_end is not None and (use.result.rank <= MATRIX) == usual
    return repr(from_end if ends else value)


def named(said: str) -> set[str]:
    """The names for attributes."""
    return {one or several for several, one in re.findall(r"\*\*(\w)|=([pqrs]\d+)\b", said)}


def _all(term: Term) -> Iterator[Use]:
    return (part[0] for part in subterms(term) if part[0] != "x")


def said(
    term: Term, names: Mapping[Term, str], attributes: Mapping[str, str], output: str = ""
) -> str:
    if term[0] == "x":
        return names[term]
    use: Use = term[0]
    own = attributes.get(call(use), "")
    parts = [said(part, names, attributes, output) for part in term[1:]]
    return use.said([*parts, *([own] if own else [])], output)
