"""Multi-patterns: what a law puts together of two terms, taken apart (TASO, section 3; TENSAT, section 4).

A law Concat(a, b) = c of terms a and b that share a variable says that both are parts of c:

    Concat(MatMul(x, y), MatMul(x, z), axis=-1) = MatMul(x, Concat(y, z, axis=-1))

    MatMul(x, y), MatMul(x, z) => Split(c, axis=-1, split=(dim(y, -1), dim(z, -1)))[0], Split(c, ...)[1]
        with c = MatMul(x, Concat(y, z, axis=-1))
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from tensaurus.expr.sizes.size import is_same_size, terms_of
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.term_order import size, variables
from tensaurus.finders.synthesis.terms import Term
from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import parse_terms
from tensaurus.rules.prove.case_split import CaseSplit
from tensaurus.rules.prove.rule_case import Case, Gap, State

__all__ = ["parted", "symmetric", "together"]


@cache
def _apart() -> dict[str, str]:
    return tomllib.loads(files("tensaurus.finders.synthesis").joinpath("parts.toml").read_text("utf-8"))


def together(left: Term, right: Term) -> Iterator[tuple[Term, Term]]:
    """Of a law the side that puts two terms together, and the other, where that computes less than both."""
    for joined, whole in ((left, right), (right, left)):
        if joined[0] == "x" or joined[0].name not in _apart():
            continue
        first, second = joined[1:]
        shared = set(variables(first)) & set(variables(second))
        if "x" in (first[0], second[0]) or not shared:
            continue
        if set(variables(joined)) == set(variables(whole)) and _computed(whole) < _computed(joined):
            yield joined, whole


def _computed(term: Term) -> int:
    """Operators in it that do more than to put their operands together."""
    own = sum(_computed(part) for part in term[1:]) if term[0] != "x" else 0
    return own if term[0] == "x" or term[0].name in _apart() else own + 1


def symmetric(joined: Term) -> bool:
    """Whether both parts are one term but for the names of variables, which are exchanged."""
    first, second = joined[1:]
    there, back = dict[Term, Term](), dict[Term, Term]()
    if size(first) != size(second) or not _renamed(first, second, there, back):
        return False
    return all(back.get(x, other) == other for x, other in there.items())


def _renamed(a: Term, b: Term, there: dict[Term, Term], back: dict[Term, Term]) -> bool:
    if a[0] == "x" or b[0] == "x":
        return a[0] == b[0] and there.setdefault(a, b) == b and back.setdefault(b, a) == a
    return a[0] is b[0] and all(_renamed(p, q, there, back) for p, q in zip(a[1:], b[1:], strict=True))


def parted(
    use: Use, parts: Sequence[str], whole: str, attributes: str, ranks: Mapping[str, int]
) -> tuple[str, str] | None:
    """Both sides of the multi-pattern, of the sides of a law as they are written.

    `use` puts the parts together, with these attributes; `ranks` are those of variables.  None where the
    size of a part is no sum of sizes of variables.
    """
    axis = int(ast.literal_eval(attributes.partition("=")[2]))
    sizes = [_size(part, axis, ranks) for part in parts]
    if None in sizes:
        return None
    text = _apart()[use.name].format(whole=whole, axis=axis, sizes=", ".join(map(str, sizes)))
    return ", ".join(parts), ", ".join(f"{text}[{place}]" for place in range(len(parts)))


class _Typed(CaseSplit):
    """The cases in which a term types."""

    def _case(self, state: State, sides: Any, asked: Any) -> Iterator[Case | Gap]:
        left, right = sides
        yield Case(state, left, right, tuple(asked))


def _size(part: str, axis: int, ranks: Mapping[str, int]) -> str | None:
    """The size of a term along an axis, of dimensions of its variables, which have these ranks."""
    roots = parse_terms(part)
    rule = Rule("part", roots, roots, (), frozenset(), f"part: {part} => {part}")
    best: tuple[int, State, Node] | None = None
    for case in _Typed(rule, max(ranks[name] for name in rule.variables)):
        if isinstance(case, Gap):
            return None
        (node,) = case.left
        free = len(case.state.symbols)
        alike = all(kind.rank == ranks[name] for name, kind in case.state.types.items())
        if alike and (best is None or free > best[0]):
            best = free, case.state, node
    if best is None:
        return None
    _, state, node = best
    found: list[str] = []
    for factors, coefficient in terms_of(node.tensor.shape[axis]):
        if len(factors) != 1 or coefficient != 1:
            return None
        named = [
            f"dim({name}, {place - kind.rank if axis < 0 else place})"
            for name, kind in state.types.items()
            for place, n in enumerate(kind.shape)
            if is_same_size(n, factors[0])
        ]
        if not named:
            return None
        found.append(named[0])
    return " + ".join(found)
