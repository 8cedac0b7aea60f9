"""Is every part of a rule needed, and would a mistake in it be noticed?

Each rule is mutated mechanically, one change at a time:

    dropped    a condition is left out
    freed      a number that the left side asks for may be any tensor
    swapped    two operands of the right side change places
    changed    a number in an attribute or a condition, or on the right side, is one more
    lost       an operator of one tensor on the right side is left out
    branched   an attribute is changed so, or a condition dropped, where a size exceeds a threshold

A mutant is refuted, or right after all (the mutation changes nothing, or generalizes the law: it is proved,
or tested as any rule is), or there is nowhere where it applies (types refuse it: no instance, and no case up
to rank 3), or it is unknown.  A branched one that is proved or tested, though it is refuted where the
threshold is exceeded, is missed: that should never be.  Writes tables/rule_mutations.csv as it goes, goes on
from there with --resume, and makes tables/rule_mutations.md of it: fates by kind, and every mutant that was
not refuted.

    python bench/rule_mutations.py [--resume] [--wanted 40] [--steps N] [--limit SECONDS] [--lanes 1]
                                   [--file FILE --rows FILE] [rule ...]
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import monotonic
from typing import TypeAlias

from rows import read, write

from tensaurus.rules.language.evidence import Evidence
from tensaurus.rules.language.match import is_commutative
from tensaurus.rules.language.rule import Rule, library, read_rules
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable, parse_expression
from tensaurus.rules.prove.case_split import CaseSplit, ProofBudget, ProofStopped
from tensaurus.rules.prove.proof import TYPES
from tensaurus.rules.test.verify_rule import PROOF_STEPS, Refuted, verify
from tensaurus.system.files import replace_file

Join: TypeAlias = Callable[[ast.expr, ast.expr], ast.expr]

ROWS = Path(__file__).parent / "tables" / "rule_mutations.csv"
KINDS = ("dropped", "freed", "swapped", "changed", "lost", "branched")
FATES = ("refuted", "proved", "nowhere", "tested", "unknown", "missed")
QUESTIONS = (
    "dim({0}, 0) > {1}",
    "dim({0}, -1) > {1}",
    "numel({0}) > {1}",
    "rank({0}) > 0 and max(shape({0})) > {1}",
)
THRESHOLDS = (6, 20, 60, 200, 500, 1500)
NONE = "none"  # there is no mutant of the rule
RANK = 3  # up to which it is shown that there is nowhere where a mutant applies
THOROUGH = 20  # times as many steps in which that is


@dataclass(frozen=True)
class Mutant:
    """A rule with one change, and what was changed; `beyond` is it where a planted question says yes."""

    kind: str
    what: str
    rule: Rule
    beyond: Rule | None = None


@dataclass(frozen=True)
class Row:
    """What became of one mutant: one of FATES, and why."""

    rule: str
    kind: str
    what: str
    fate: str
    why: str


def mutants(rule: Rule) -> Iterator[Mutant]:
    """Every rule that is one change away."""
    for place, condition in enumerate(rule.where):
        if not guides(condition):
            kept = rule.where[:place] + rule.where[place + 1 :]
            yield Mutant("dropped", ast.unparse(condition), replace(rule, where=kept))
        for what, other in _one_more(condition):
            changed = (*rule.where[:place], other, *rule.where[place + 1 :])
            yield Mutant("changed", what, replace(rule, where=changed))
    yield from branched(rule)
    for place, root in enumerate(rule.lhs):
        for what, other in _freed(root):
            yield Mutant("freed", what, replace(rule, lhs=_with(rule.lhs, place, other)))
    for place, root in enumerate(rule.rhs):
        for kind, change in (("swapped", _swapped), ("changed", _changed), ("lost", _lost)):
            for what, other in change(root):
                yield Mutant(kind, what, replace(rule, rhs=_with(rule.rhs, place, other)))


def branched(rule: Rule) -> Iterator[Mutant]:
    """The rule with one part wrong beyond a threshold: a condition, or a number of an attribute on the right
    side.  Which question is planted is made of the rule's text alone."""
    random = Random(rule.text)
    names = [variable.name for variable in rule.variables.values() if not variable.optional]
    if not names:
        return

    def mutant(said: ast.expr, where: Sequence[ast.expr], rhs: tuple[Term, ...] = rule.rhs) -> Rule:
        return replace(rule, where=tuple(where), rhs=rhs, text=f"{rule.text} {ast.unparse(said)}")

    def question() -> ast.expr:
        question = random.choice(QUESTIONS)
        return parse_expression(question.format(random.choice(names), random.choice(THRESHOLDS)))

    for place, condition in enumerate(rule.where):
        if guides(condition):
            continue
        asked, others = question(), [*rule.where[:place], *rule.where[place + 1 :]]
        either = ast.BoolOp(ast.Or(), [condition, asked])
        whole = mutant(either, [*others, either])
        yield Mutant("branched", ast.unparse(either), whole, mutant(asked, [*others, asked]))
    for place, root in enumerate(rule.rhs):
        asked = question()
        split = _attributes_changed(root, lambda own, other, asked=asked: ast.IfExp(asked, other, own))
        plain = _attributes_changed(root, lambda own, other: other)
        for (what, other), (_, there) in zip(split, plain, strict=True):
            said = ast.BoolOp(ast.Or(), [asked, ast.Constant(what)])  # what makes the texts of mutants differ
            whole = mutant(said, rule.where, _with(rule.rhs, place, other))
            beyond = mutant(said, [*rule.where, asked], _with(rule.rhs, place, there))
            yield Mutant("branched", f"{what} if {ast.unparse(asked)}", whole, beyond)


def _attributes_changed(term: Term, join: Join) -> Iterator[tuple[str, Term]]:
    """What `join` makes of an attribute and of that with a number one larger, for each attribute."""
    if isinstance(term, Apply):
        for place, (name, tree) in enumerate(term.attrs):
            for what, other in _one_more(tree):
                new = (*term.attrs[:place], (name, join(tree, other)), *term.attrs[place + 1 :])
                yield f"{name}: {what}", Apply(term.op, term.args, new, term.rest)
    yield from _inside(term, partial(_attributes_changed, join=join))


def _with(roots: Sequence[Term], place: int, root: Term) -> tuple[Term, ...]:
    return (*roots[:place], root, *roots[place + 1 :])


def guides(condition: ast.expr) -> bool:
    """True for (not) const(x): it keeps the search from useless rewrites, no wrong instance out."""
    if isinstance(condition, ast.UnaryOp):
        condition = condition.operand
    return (
        isinstance(condition, ast.Call)
        and isinstance(condition.func, ast.Name)
        and condition.func.id == "const"
    )


def _one_more(tree: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The expression with one of its numbers one larger."""
    count = sum(_is_number(part) for part in ast.walk(tree))
    for wanted in range(count):
        other, seen = deepcopy(tree), 0
        for part in ast.walk(other):
            if _is_number(part):
                if seen == wanted:
                    assert isinstance(part, ast.Constant) and isinstance(part.value, (int, float))
                    part.value += 1
                seen += 1
        yield f"{ast.unparse(tree)} -> {ast.unparse(other)}", other


def _is_number(part: ast.AST) -> bool:
    return isinstance(part, ast.Constant) and type(part.value) in (int, float)


def _inside(term: Term, change: object) -> Iterator[tuple[str, Term]]:
    """What `change` makes of the term's parts."""
    match term:
        case Apply(op, args, attrs, rest):
            for place, arg in enumerate(args):
                if arg is not None:
                    for what, other in change(arg):  # type: ignore[operator]
                        yield what, Apply(op, (*args[:place], other, *args[place + 1 :]), attrs, rest)
        case Item(inner, index):
            for what, other in change(inner):  # type: ignore[operator]
                if isinstance(other, Apply):
                    yield what, Item(other, index)


def _freed(term: Term) -> Iterator[tuple[str, Term]]:
    if isinstance(term, Literal):
        yield f"{term.value} is any tensor", Variable("freed")
    yield from _inside(term, _freed)


def _swapped(term: Term) -> Iterator[tuple[str, Term]]:
    match term:
        case Apply(op, (a, b), attrs, rest) if a is not None and a != b and not is_commutative(op):
            yield f"operands of {op}", Apply(op, (b, a), attrs, rest)
    yield from _inside(term, _swapped)


def _changed(term: Term) -> Iterator[tuple[str, Term]]:
    yield from _attributes_changed(term, lambda own, other: other)
    yield from _literals_changed(term)


def _literals_changed(term: Term) -> Iterator[tuple[str, Term]]:
    if isinstance(term, Literal):
        yield f"{term.value} -> {term.value + 1}", Literal(term.value + 1)
    yield from _inside(term, _literals_changed)


def _lost(term: Term) -> Iterator[tuple[str, Term]]:
    match term:
        case Apply(op, (Apply() | Variable() as inner,), _, _):
            yield f"{op}", inner
    yield from _inside(term, _lost)


def fate(mutant: Mutant, wanted: int, steps: float) -> tuple[str, str]:
    """One of FATES, and why: missed where it holds, they say, and does not where a branch was planted."""
    found, why = _fate(mutant.rule, wanted, steps)
    if found in ("proved", "tested") and mutant.beyond is not None:
        there = verify(replace(mutant.beyond, evidence=None), wanted, steps=0)
        if isinstance(there, Refuted):
            return "missed", f"{why}, but {there.reason}"
    return found, why


def _fate(mutant: Rule, wanted: int, steps: float) -> tuple[str, str]:
    found = verify(replace(mutant, evidence=None), wanted, steps=steps)
    if isinstance(found, Refuted):
        return "refuted", found.reason
    if isinstance(found, Evidence):
        return found.kind, str(found)
    if applies(mutant, THOROUGH * steps):
        return "unknown", found.reason
    return "nowhere", f"{found.reason}, and no case up to rank {RANK}"


def applies(mutant: Rule, steps: float) -> bool:
    """Whether there is a case of it, as far as so many steps show: where they do not, there may be."""
    left = ProofBudget(steps)
    kinds = TYPES if "any" in mutant.tags else TYPES[:1]
    every = ((kind, rank) for kind in kinds for rank in range(RANK + 1))
    try:
        return any(True for kind, rank in every for _ in CaseSplit(mutant, rank, dtypes=kind, budget=left))
    except (ProofStopped, RecursionError):  # sizes that are nested too deeply
        return True


@cache
def _rules(file: Path | None) -> dict[str, Rule]:
    every = (
        library(ops=())
        if file is None
        else read_rules(file.read_text("utf-8").splitlines(), file.name, ops=())
    )
    return {rule.name: rule for rule in every if "off" not in rule.tags}


def fates(name: str, file: Path | None, wanted: int, steps: float) -> list[Row]:
    """What becomes of every mutant of a rule."""
    rows = [Row(name, m.kind, m.what, *fate(m, wanted, steps)) for m in mutants(_rules(file)[name])]
    return rows or [Row(name, "", "", NONE, "")]


def page(every: Sequence[Row], file: Path | None) -> str:
    """The table as Markdown."""
    order, rules = list(_rules(file)), len({row.rule for row in every})
    rows = sorted((row for row in every if row.fate != NONE), key=lambda row: order.index(row.rule))
    counts = Counter((row.kind, row.fate) for row in rows)
    own = "" if file is None else f" --file {file.name}"
    said = f"{len(rows)} mutants of {rules} rules of {len(order)}; `python bench/rule_mutations.py{own}`."
    lines = ["# Mutants of the rules", "", said, "", f"| mutation | mutants | {' | '.join(FATES)} |"]
    lines += [f"| --- | {' | '.join(['---:'] * (1 + len(FATES)))} |"]
    for kind in KINDS:
        ends = [counts[kind, end] for end in FATES]
        cells = [sum(ends), *ends]
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    lines += ["", "## Not refuted", "", "| rule | mutation | | fate | why |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for row in rows:
        if row.fate != "refuted":
            cells = [row.rule, row.kind, f"`{row.what}`", row.fate, row.why[:160]]
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="rules; all where none is named")
    parser.add_argument("--wanted", type=int, default=40, help="instances of each mutant")
    parser.add_argument("--steps", type=float, default=PROOF_STEPS, help="of the proof of each mutant")
    parser.add_argument("--limit", type=float, default=inf, help="seconds after which it ends")
    parser.add_argument("--lanes", type=int, default=1, help="processes side by side")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--file", type=Path, help="of rules; default: those written by hand")
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    rows: list[Row] = read(options.rows, Row) if options.resume else []
    known = {row.rule for row in rows}
    names = [name for name in options.names or _rules(options.file) if name not in known]
    start = monotonic()
    each = partial(fates, file=options.file, wanted=options.wanted, steps=options.steps)
    with get_context("fork").Pool(options.lanes) as pool:
        for made in pool.imap_unordered(each, names):
            rows += made
            write(options.rows, rows)
            for row in made:
                if row.fate not in ("refuted", NONE):
                    print(f"{row.fate:8} {row.rule}: {row.kind} {row.what}: {row.why[:100]}", flush=True)
            if monotonic() - start > options.limit:
                break
    print(Counter(row.fate for row in rows))
    with replace_file(options.rows.with_suffix(".md")) as beside:
        beside.write_text(page(rows, options.file))


if __name__ == "__main__":
    main()
