"""Writes a law of terms as the texts of rules, the most general text first.

Each attribute is written as its value in the world, or as a name that stands for any value.  An axis is
counted from the beginning or from the end.  Of an operator with several outputs, an output is written as its
number, or as [i] for any.  A call is an operator with its attributes: all outputs of a Split are one call.

    Split(Relu(x), **a)[i] <=> Relu(Split(x, **a)[i])      the most general text; later ones have values for
    Split(Relu(x), axis=1, **a)[0] <=> ...                 one attribute, for the output, for all attributes
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.term_order import variables_in
from tensaurus.finders.synthesis.terms import Application, Term, Variable, subterms

__all__ = [
    "MATRIX_RANK", "LawText", "attribute_names", "attribute_texts", "call_text", "format_term", "law_texts",
]  # fmt: skip

ALL_ATTRIBUTES = "abcdefgh"  # names for all attributes of a call: Conv(x, y, **a)
EACH_ATTRIBUTE = "pqr"  # beginnings of names for the attributes of a call one by one: axis=p0
OUTPUT_NAME = "i"  # for the number of an output: Split(x)[i]
MATRIX_RANK = 2  # up to this rank, axes are written as counted from the end first


@dataclass(frozen=True)
class LawText:
    """Both sides as text, and the arrow between them."""

    left: str
    arrow: str
    right: str

    @property
    def has_names(self) -> bool:
        """Whether a name stands for an attribute or an output."""
        return re.search(r"\*\*|=[a-z]\d+\b|\[[a-z]\]", f"{self.left} {self.right}") is not None

    def where(self, conditions: Iterable[str]) -> str:
        """Return the text of the rule with these conditions."""
        condition = ", ".join(conditions)
        return f"{self.left} {self.arrow} {self.right}" + (f" where {condition}" if condition else "")


def law_texts(first: Term, second: Term, names: Mapping[Variable, str], back: bool) -> Iterator[LawText]:
    """Yield the law's texts, with names for attributes first; `back`: whether both directions are allowed."""
    both = back and set(variables_in(first)) == set(variables_in(second)) and second not in subterms(first)
    outputs = [{use.output for use in _uses_in(side) if use.outputs > 1} for side in (first, second)]
    has_one_output = len(outputs[0]) == 1 and outputs[1] <= outputs[0]
    for attributes in attribute_texts(first, second):
        for output in (OUTPUT_NAME, "") if has_one_output else ("",):
            left, right = (format_term(side, names, attributes, output) for side in (first, second))
            # `<=>` also matches the right side, which must then contain every name that the left side has
            is_bound = attribute_names(left) <= attribute_names(right)
            is_bound = is_bound and (outputs[0] == outputs[1] or not output)
            yield LawText(left, "<=>" if both and is_bound else "=>", right)


def attribute_texts(first: Term, second: Term) -> Iterator[dict[str, str]]:
    """Yield {call: text of its attributes}, the most general texts first.

    The texts of a call, in order:
    1. if its operator has one call only, and this stands on the left: `**a`; then `axis=1, **a`
    2. every tuple as a name, equal tuples as the same name
    3. only those tuples as names that may be any numbers
    4. all values
    Combinations of several calls come by the sum of the places of their texts.  After all of them, if 1 holds
    for each of at most three calls, comes one name per attribute: `axis=p0`.
    """
    # texts 2 to 4: all tuples as names, only those whose numbers may be any, none
    uses = _calls_with_attributes(first, second)
    counts = Counter(use.name for use in uses.values())
    on_left = {call_text(use) for use in _uses_in(first)}
    values, tuple_names = list(_format_attributes(uses)), _name_tuples(uses.values())
    free_tuples = _free_tuples(uses.values())
    number_names = {each: name for each, name in tuple_names.items() if each in free_tuples}
    with_names = [*_format_attributes(uses, tuple_names), *_format_attributes(uses, number_names)]
    choices: list[list[str]] = []
    for (call, use), all_others in zip(uses.items(), ALL_ATTRIBUTES, strict=False):
        texts = list(dict.fromkeys(each[call] for each in (*with_names, *values)))
        if counts[use.name] == 1 and call in on_left:  # text 1
            numbers = {name: n for name, n in use.defaults.items() if isinstance(n, int)}
            numbers = numbers if len(use.defaults) > 1 else {}
            given = {name: use.attrs.get(name, n) for name, n in numbers.items()}
            one_value = [
                f"{name}={_format_value(use, name, n, is_preferred)}, **{all_others}"
                for is_preferred in (True, False)
                for name, n in given.items()
            ]
            texts = [f"**{all_others}", *dict.fromkeys(one_value), *texts]
        choices.append(texts)
    numbers_of_texts = product(*(range(len(texts)) for texts in choices))
    for chosen in sorted(numbers_of_texts, key=lambda each: (sum(each), each)):
        yield {call: texts[number] for call, texts, number in zip(uses, choices, chosen, strict=True)}
    is_single = all(counts[use.name] == 1 and call in on_left for call, use in uses.items())
    if 0 < len(uses) <= len(EACH_ATTRIBUTE) and is_single:
        yield {
            call: ", ".join(f"{name}={letter}{k}" for k, name in enumerate(use.attrs))
            for letter, (call, use) in zip(EACH_ATTRIBUTE, uses.items(), strict=False)
        }


def _name_tuples(uses: Iterable[Use]) -> dict[tuple[str, Any], str]:
    """Return {(attribute, value): name} for the values that are tuples."""
    given = dict.fromkeys((name, n) for u in uses for name, n in u.attrs.items() if isinstance(n, tuple))
    return {each: f"s{number}" for number, each in enumerate(given)}


def _free_tuples(uses: Iterable[Use]) -> set[tuple[str, Any]]:
    """Return the (attribute, value) pairs whose numbers any others can replace in every use.

    The numbers of axes and steps cannot be replaced.
    """
    given = [((name, n), use.takes_any_numbers(name)) for use in uses for name, n in use.attrs.items()]
    return {each for each, _ in given} - {each for each, is_any in given if not is_any}


def call_text(use: Use) -> str:
    """Return the operator with its attributes: equal for all outputs of one call."""
    return str(use).partition(")[")[0]


def _calls_with_attributes(*terms: Term) -> dict[str, Use]:
    return {call_text(use): use for term in terms for use in _uses_in(term) if use.attrs}


def _format_attributes(
    uses: Mapping[str, Use], names: Mapping[tuple[str, Any], str] | None = None
) -> Iterator[dict[str, str]]:
    """Yield {call: attributes as names or values}, first with axes counted in the preferred way, then not."""
    previous: dict[str, str] = {}
    names = names or {}

    def format_one(use: Use, name: str, value: Any, is_preferred: bool) -> str:
        return names[name, value] if (name, value) in names else _format_value(use, name, value, is_preferred)

    for is_preferred in (True, False):
        texts = {
            call: ", ".join(f"{key}={format_one(use, key, n, is_preferred)}" for key, n in use.attrs.items())
            for call, use in uses.items()
        }
        if texts != previous:
            yield (previous := texts)


def _format_value(use: Use, name: str, value: Any, is_preferred: bool) -> str:
    """Return a value as text, with axes counted in the preferred way or in the other.

    The preferred way counts from the end where the result has a rank up to MATRIX_RANK, because the rule then
    also holds with batch dimensions in front, and from the beginning elsewhere.
    """
    from_end = use.count_from_end(name, value)
    counts_from_end = from_end is not None and (use.result.rank <= MATRIX_RANK) == is_preferred
    return repr(from_end if counts_from_end else value)


def attribute_names(text: str) -> set[str]:
    """Return the names that stand for attributes in a side's text: **a (a group of them), axis=p0 (one)."""
    return {single or group for group, single in re.findall(r"\*\*(\w)|=([pqrs]\d+)\b", text)}


def _uses_in(term: Term) -> Iterator[Use]:
    return (part.use for part in subterms(term) if isinstance(part, Application))


def format_term(
    term: Term, names: Mapping[Variable, str], attributes: Mapping[str, str], output: str = ""
) -> str:
    """Return the term's text with these names of variables, texts of attributes, and name of outputs."""
    if isinstance(term, Variable):
        return names[term]
    attribute_text = attributes.get(call_text(term.use), "")
    parts = [format_term(part, names, attributes, output) for part in term.args]
    return term.use.format([*parts, *([attribute_text] if attribute_text else [])], output)
