"""Makes multi-pattern rules of laws that concatenate two terms (TASO, section 3; TENSAT, section 4).

A law Concat(a, b) = c, of terms a and b that share a variable, says that both are parts of c:

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

from tensaurus.expr.sizes.size import is_same_size, terms_of
from tensaurus.finders.synthesis.operator_use import Use
from tensaurus.finders.synthesis.term_order import term_size, variables_in
from tensaurus.finders.synthesis.terms import Application, Term, Variable
from tensaurus.graph.ir.node import Node
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.term import parse_terms
from tensaurus.rules.prove.case_split import CaseSplit
from tensaurus.rules.prove.rule_case import CaseState, Gap

__all__ = ["find_joined_sides", "format_multi_pattern", "has_symmetric_parts"]


@cache
def _split_templates() -> dict[str, str]:
    """Return {operator that joins: text of the operator that splits what was joined}."""
    return tomllib.loads(files("tensaurus.finders.synthesis").joinpath("parts.toml").read_text("utf-8"))


def find_joined_sides(left: Term, right: Term) -> Iterator[tuple[Application, Term]]:
    """Yield (side that joins two terms, other side) where the other side computes less."""
    for joined, whole in ((left, right), (right, left)):
        if isinstance(joined, Variable) or joined.use.name not in _split_templates():
            continue
        first, second = joined.args
        shared = set(variables_in(first)) & set(variables_in(second))
        if isinstance(first, Variable) or isinstance(second, Variable) or not shared:
            continue
        if set(variables_in(joined)) == set(variables_in(whole)) and _work(whole) < _work(joined):
            yield joined, whole


def _work(term: Term) -> int:
    """Return the number of operators that do more than join their operands."""
    if isinstance(term, Variable):
        return 0
    return sum(map(_work, term.args)) + (term.use.name not in _split_templates())


def has_symmetric_parts(joined: Application) -> bool:
    """Return whether exchanging the names of variables turns each part into the other."""
    first, second = joined.args
    forth, back = dict[Variable, Variable](), dict[Variable, Variable]()
    if term_size(first) != term_size(second) or not _find_renaming(first, second, forth, back):
        return False
    return all(back.get(x, other) == other for x, other in forth.items())


def _find_renaming(
    a: Term, b: Term, forth: dict[Variable, Variable], back: dict[Variable, Variable]
) -> bool:
    """Return whether b is a with its variables renamed; extend `forth`, from a to b, and `back`."""
    if isinstance(a, Variable) and isinstance(b, Variable):
        return forth.setdefault(a, b) == b and back.setdefault(b, a) == a
    if isinstance(a, Variable) or isinstance(b, Variable) or a.use is not b.use:
        return False
    return all(_find_renaming(p, q, forth, back) for p, q in zip(a.args, b.args, strict=True))


def format_multi_pattern(
    use: Use, parts: Sequence[str], whole: str, attributes: str, ranks: Mapping[str, int]
) -> tuple[str, str] | None:
    """Return the texts of both sides, None where the size of a part is no sum of sizes of variables.

    `use` joins the parts; `whole` is the other side of the law.
    """
    axis = int(ast.literal_eval(attributes.partition("=")[2]))
    sizes = [_size_text(part, axis, ranks) for part in parts]
    if None in sizes:
        return None
    text = _split_templates()[use.name].format(whole=whole, axis=axis, sizes=", ".join(map(str, sizes)))
    return ", ".join(parts), ", ".join(f"{text}[{number}]" for number in range(len(parts)))


def _size_text(part: str, axis: int, ranks: Mapping[str, int]) -> str | None:
    """Return a term's size along an axis as a sum of dimensions of its variables, or None.

    MatMul(x, y) along -1   ->   dim(y, -1)        `ranks` has the rank of each variable
    """
    roots = parse_terms(part)
    rule = Rule("part", roots, roots, (), frozenset(), f"part: {part} => {part}")
    # the case with the most symbols: in the others some sizes are fixed or equal
    most_general: tuple[int, CaseState, Node] | None = None
    rank = max(ranks[name] for name in rule.variables)
    for case in CaseSplit(rule, rank, skip_identical=False):
        if isinstance(case, Gap):
            return None
        (node,) = case.left
        free = len(case.state.symbols)
        has_ranks = all(kind.rank == ranks[name] for name, kind in case.state.types.items())
        if has_ranks and (most_general is None or free > most_general[0]):
            most_general = free, case.state, node
    if most_general is None:
        return None
    _, state, node = most_general
    summands: list[str] = []
    for factors, coefficient in terms_of(node.tensor.shape[axis]):
        if len(factors) != 1 or coefficient != 1:
            return None
        dimensions = [
            f"dim({name}, {place - kind.rank if axis < 0 else place})"
            for name, kind in state.types.items()
            for place, n in enumerate(kind.shape)
            if is_same_size(n, factors[0])
        ]
        if not dimensions:
            return None
        summands.append(dimensions[0])
    return " + ".join(summands)
