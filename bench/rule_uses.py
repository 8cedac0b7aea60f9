"""Which rules the models use, and what larger rules and their layout are worth (TASO, figures 10 to 12).

Every model is explored and a program extracted by estimated costs, so that nothing is measured and the
figures are the same on any day.  Writes tables/rule_uses.md, and to
src/tensaurus/rules/library/generated/idle.txt which generated rules make no program smaller and help no
model, neither beside those written by hand nor alone: only long searches take those.

    uses     which rules are applied on the way from the original to the program, and how often, by the whole
             library and by generated rules alone
    sizes    of the zoo: how many times as fast the program should be, with generated rules of up to so many
             operators, alone and beside the rules that are written by hand
    layout   the same with rules that move elements only, without them, one after the other, and with all,
             of those that short searches take

    python bench/rule_uses.py [MODEL ...]    default: the zoo, and models that public packages ship
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

from prices import Prices

from tensaurus.app.zoo.selection import select_models
from tensaurus.egraph.extract.local_search import quick_extraction
from tensaurus.egraph.extract.problem import Problem, Selection
from tensaurus.egraph.match.saturate import Limits
from tensaurus.expr.ir.scope import Read
from tensaurus.graph.ir.node import apply, source
from tensaurus.graph.ir.program import Program
from tensaurus.graph.onnx.onnx_import import import_model
from tensaurus.ops import Op
from tensaurus.ops.examples import examples_of
from tensaurus.optimizer.search.outcome import Outcome
from tensaurus.optimizer.search.saturation import Saturation
from tensaurus.optimizer.search.strategies import Rulesets
from tensaurus.rules.language.occurrences import outer_first
from tensaurus.rules.language.rule import UNUSED_RULES_FILE, Rule, library, read_rules
from tensaurus.rules.language.term import Literal, Term, show_term
from tensaurus.runtimes.measure.machine import Machine
from tensaurus.runtimes.price.operation_counts import number_of, product_operations, scopes_of
from tensaurus.system.files import replace_file

TABLE = Path(__file__).parent / "tables" / "rule_uses.md"
GENERATED = Path(__file__).parent.parent / "src" / "tensaurus" / "rules" / "library" / "generated"
LIMITS = Limits(multi=1)
WORTH = 1.0005  # times as fast
HEAD = "# world "
# Worlds of single elements: what they say applies to nearly every operator, so that searches pay for it, and
# what is used is as often another way to write an expression of weights.
EVERYWHERE = ("pointwise", "functions")

Rules: TypeAlias = Sequence[Rule]


def generated() -> list[Rule]:
    """The rules that ship, of those that are generated."""
    found: list[Rule] = []
    for file in sorted(GENERATED.glob("*.rules")):
        found += read_rules(file.read_text().splitlines(), file.name, ops=())
    return found


def everywhere() -> set[str]:
    """The rules of the worlds that are EVERYWHERE."""
    own, world = list[str](), ""
    for line in (GENERATED / "worlds.rules").read_text().splitlines():
        world = line.removeprefix(HEAD) if line.startswith(HEAD) else world
        own += [line] if world in EVERYWHERE else []
    return {rule.name for rule in read_rules(own)}


def sizes_of(rule: Rule) -> tuple[int, int]:
    """Operators of both sides; what stands there twice counts once."""
    left, right = (
        len({show_term(call) for root in side for call in outer_first(root)}) for side in (rule.lhs, rule.rhs)
    )
    return left, right


def size(rule: Rule) -> int:
    """Operators of its larger side."""
    return max(sizes_of(rule))


def numbers_of(roots: Sequence[Term]) -> int:
    """Arguments that are numbers."""
    return sum(isinstance(arg, Literal) for root in roots for call in outer_first(root) for arg in call.args)


def summing(roots: Sequence[Term]) -> int:
    """Operators that add up products; what stands there twice counts once."""
    calls = {show_term(call): call.op for root in roots for call in outer_first(root)}
    return sum(map(adds_up_products, calls.values()))


def is_worth_its_search(rule: Rule) -> bool:
    """Whether it makes a program smaller, or one sum of products of several, or has fewer numbers.

    Operators by element that are merged save nothing, as both elements are computed as before, and the
    pairs that agree are many: sums along the residual connections of EfficientNet made 49,000 e-nodes.
    """
    left, right = sizes_of(rule)
    merges = len(rule.lhs) > 1 and summing(rule.lhs) > summing(rule.rhs)
    return merges or rule.shrinks or (left, numbers_of(rule.lhs)) > (right, numbers_of(rule.rhs))


def moves(op: Op) -> bool:
    """Whether it only puts the elements of a tensor, all of them, at other places."""
    for kinds, attrs in examples_of(op)[:1]:
        args = [None if kind is None else source(f"x{k}", kind) for k, kind in enumerate(kinds)]
        node = apply(op, args, dict(attrs))
        scopes = scopes_of(node) if node.args else ()
        sizes = [prod(map(number_of, kind.shape)) for kind in (*kinds[:1], node.tensor) if kind is not None]
        return sizes[0] == sizes[-1] and len(scopes) == 1 and isinstance(scopes[0].body, Read)
    return False


@cache
def adds_up_products(op: Op) -> bool:
    """Whether its elements are sums of products."""
    kinds, attrs = next(iter(examples_of(op)))
    args = [None if kind is None else source(f"x{k}", kind) for k, kind in enumerate(kinds)]
    return product_operations(apply(op, args, dict(attrs))) > 0


def layout(rule: Rule) -> bool:
    """Whether it moves elements by an operator that does nothing else."""
    return any(moves(call.op) for root in (*rule.lhs, *rule.rhs) for call in outer_first(root))


def _quick(problem: Problem, seconds: float, start: Selection | None) -> Selection:
    return quick_extraction(problem)


def optimized(program: Program, rules: Rules) -> Outcome:
    """What comes out by estimates."""
    simplifying, usual, later = Rulesets.compile(rules)
    search = Saturation(
        usual, Prices(), [_quick], exploration_limits=LIMITS, simplifying=simplifying, later=later
    )
    return search.run(program)


def applied(program: Program, rules: Rules) -> tuple[list[str], float]:
    """The rules that made the result, and how many times as fast it should be."""
    found = optimized(program, rules)
    cost = found.best.cost  # none, of a model that only hands its inputs on
    return [one.name for one in found.best.applied], found.original.cost / cost if cost else 1.0


def gain(program: Program, rules: Rules) -> float:
    """How many times as fast the result should be."""
    return applied(program, rules)[1]


def gain_in_turn(program: Program, first: Rules, second: Rules) -> float:
    """The same of one optimization after another."""
    before = optimized(program, first)
    after = optimized(before.best.program, second)
    return before.original.cost / after.best.cost


_asked: tuple[Sequence[Program], Callable[[Program], Any]]  # of a process of the pool


def _side_by_side(programs: Mapping[str, Program], ask: Callable[[Program], Any]) -> Iterator[Any]:
    """What is asked of each program, as many at a time as there are cores."""
    global _asked
    _asked = tuple(programs.values()), ask
    with get_context("fork").Pool(Machine.here().threads, maxtasksperchild=4) as pool:
        yield from pool.imap(_answer, range(len(programs)))


def _answer(place: int) -> Any:
    programs, ask = _asked
    return ask(programs[place])


def table(head: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    yield f"| {' | '.join([head, *columns])} |"
    yield f"| --- |{' ---: |' * len(columns)}"
    for name, cells in rows:
        yield f"| {' | '.join([name, *cells])} |"


def page(models: Sequence[str], idle: list[str]) -> Iterator[str]:
    """The tables, line by line; `idle` becomes the rules that none uses."""
    own, every = generated(), [rule for rule in library(ops=()) if not {"off", "expand"} & rule.tags]
    own = [rule for rule in own if "off" not in rule.tags]
    names = {rule.name for rule in own}
    by_hand = [rule for rule in every if rule.name not in names]
    largest = max(map(size, own))
    chosen = select_models(models)
    programs = {one.name: import_model(one.load(), dict(one.shapes), one.name) for one in chosen}
    papers = [one.name for one in select_models(["zoo"]) if one.name in programs]
    published = {name: programs[name] for name in papers}

    yield from ("# Uses of the generated rules", "", "`python bench/rule_uses.py`; costs are estimated.", "")
    yield from ("## Which rules each model uses, and how often (TASO, figure 10)", "")
    sets = (every, own, by_hand)
    made = _side_by_side(programs, lambda program: [applied(program, rules) for rules in sets])
    outcomes = dict(zip(programs, made, strict=True))
    uses = {name: [Counter(rules) for rules, _ in found[:2]] for name, found in outcomes.items()}
    helped = set[str]()  # a result that is no faster for them only happens to be written with them
    for (whole, gained), (alone, gained_alone), (_, gained_by_hand) in outcomes.values():
        helped |= {*whole} if gained > gained_by_hand * WORTH else set()
        helped |= {*alone} if gained_alone > WORTH else set()

    def used() -> Iterator[tuple[str, Sequence[str]]]:
        for name, counts in uses.items():
            yield name, [", ".join(f"{rule} {n}" for rule, n in each.most_common()) for each in counts]

    yield from table("model", ["all rules", "generated rules alone"], used())
    for how, place in (("beside all others", 0), ("alone", 1)):
        helpful = sum(any(rule.name in each[place] for each in uses.values()) for rule in own)
        yield from ("", f"Of {len(own)} generated rules {helpful} are used {how}.")
    common = everywhere()
    idle += [
        rule.name
        for rule in own
        if not is_worth_its_search(rule) and (rule.name not in helped or rule.name in common)
    ]
    count = sum(rule.name in helped for rule in own)
    left = (
        f"{count} of them are used where generated rules make a model faster, alone or beside the others."
        f" {len(idle)} that are not, or apply nearly everywhere ({', '.join(EVERYWHERE)}), and make nothing"
        " smaller, long searches alone take."
    )
    yield from ("", left)

    yield from ("", "## What larger rules are worth (TASO, figure 11)", "")
    sizes = range(largest + 1)
    small = {n: [rule for rule in own if size(rule) <= n] for n in sizes}
    heads = [f"up to {n}" for n in sizes[1:]]

    def ablated(program: Program) -> list[str]:
        alone = [f"{gain(program, small[n]):.3f}" for n in sizes[1:]]
        return [*alone, *(f"{gain(program, by_hand + small[n]):.3f}" for n in sizes)]

    columns = [*heads, "by hand", *(f"and {head}" for head in heads)]
    yield from table("model", columns, zip(papers, _side_by_side(published, ablated), strict=True))

    yield from ("", "## Layout, jointly and in turn (TASO, figure 12)", "")
    waiting = {rule.name for rule in by_hand if "long" in rule.tags}.union(idle)
    # those that waited until now wait no longer: who waits has a round of multi-patterns more
    usual = [replace(rule, tags=rule.tags - {"long"}) for rule in every if rule.name not in waiting]
    moving, rest = (
        [rule for rule in usual if layout(rule)],
        [rule for rule in usual if not layout(rule)],
    )
    ways: dict[str, Callable[[Program], float]] = {
        "without layout": lambda program: gain(program, rest),
        "layout alone": lambda program: gain(program, moving),
        "layout afterwards": lambda program: gain_in_turn(program, rest, moving),
        "layout before": lambda program: gain_in_turn(program, moving, rest),
        "jointly": lambda program: gain(program, usual),
    }

    def laid(program: Program) -> list[str]:
        return [f"{way(program):.3f}" for way in ways.values()]

    yield from table("model", list(ways), zip(papers, _side_by_side(published, laid), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["zoo", "pretrained"])
    options = parser.parse_args()
    lines, idle = list[str](), list[str]()
    for line in page(options.models, idle):
        print(line, flush=True)
        lines.append(line)
    note = "# made by bench/rule_uses.py: rules that help no model, and that make none smaller"
    for file, text in ((TABLE, lines), (GENERATED / UNUSED_RULES_FILE, [note, *idle])):
        with replace_file(file) as beside:
            beside.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
