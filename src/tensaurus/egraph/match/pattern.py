"""Patterns compiled to Python: nested loops over the e-nodes of each class, by operator.

A pattern is one root of a rule's left side with its variables numbered in the order in which they occur, so
that rules which differ in names share one search (TENSAT, section 4: canonical patterns).  What a rule asks
of the types of one variable alone is asked inside the loops, before there is a match.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from tensaurus.egraph.core.class_analysis import interned
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.core.enode_head import Kind, kind
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable

__all__ = ["LOOPS", "Guard", "Match", "Pattern", "Rows", "Sift", "compiled", "loops", "shape", "sift"]

LOOPS = 20  # Python has no more in each other

Match = tuple[int, ...]  # the e-nodes that a pattern's operators matched, outermost first
Born = Sequence[tuple[int, ...]]  # of each e-node, its arguments as it was inserted
Rows = Mapping[int, list[int]]  # of each class, its e-nodes of one kind
Guard = Mapping[int, bool]  # whether a rule applies to a variable, by the code of what is known of its class
Search = Callable[[Sequence[int], Sequence[Rows], Any, Any, list[Match], float, float], None]
Bind = Callable[[Born, Match], tuple[int, ...]]
Sift = Callable[..., None]  # what `sift` writes


@dataclass(frozen=True)
class Position:
    """An argument of a matched e-node: the operator's number in the pattern, and the argument's."""

    operator: int
    argument: int


@dataclass(eq=False)
class Pattern:
    """One root, compiled.

    `places` are the occurrences of each variable, `inner` of operators, `literals` of numbers.
    """

    root: Kind
    kinds: tuple[Kind, ...]  # of its operators, each once; the root's first
    below: tuple[tuple[int, Kind], ...]  # arguments of the root that are operators
    variables: tuple[str, ...]
    places: tuple[tuple[Position, ...], ...]
    inner: tuple[tuple[Position, int], ...]
    literals: tuple[Position, ...]
    operators: tuple[Term, ...]  # an Apply or Item each, as numbered
    depth: int
    source: str
    constants: Mapping[str, Any]  # that its source names

    @cached_property
    def search(self) -> Search:
        """Of e-nodes of its kind, until there are so many matches or it is so late."""
        search: Search = self._functions["search"]
        return search

    @cached_property
    def bind(self) -> Bind:
        """The term that each variable stands for."""
        bind: Bind = self._functions["bind"]
        return bind

    @cached_property
    def _functions(self) -> dict[str, Any]:
        """What the source defines; most models have no e-nodes for most patterns."""
        scope: dict[str, Any] = {"now": monotonic, **self.constants}
        exec(compile(self.source, f"<pattern {self.root}>", "exec"), scope)  # of the rule's operators alone
        return scope

    def instance(self, graph: EGraph, match: Match, terms: Sequence[int]) -> Node:
        """The program that was matched, its variables being these terms."""
        return self.over(graph, match, [graph.term(term) for term in terms])

    def over(self, graph: EGraph, match: Match, nodes: Sequence[Node]) -> Node:
        """The operators that were matched, over these nodes in place of the variables."""
        inner = {(at.operator, at.argument): number for at, number in self.inner}
        spots = {(s.operator, s.argument): k for k, group in enumerate(self.places) for s in group}
        literals = {(at.operator, at.argument) for at in self.literals}
        built: dict[int, Node] = {}
        for number in reversed(range(len(match))):  # what stands inside has the higher number
            args: list[Node | None] = []
            for argument, inserted in enumerate(graph.born[match[number]]):
                at = (number, argument)
                if at in inner:
                    args.append(built[inner[at]])
                elif at in spots:
                    args.append(nodes[spots[at]])
                elif at in literals:
                    args.append(graph.term(graph.constant_of(inserted)))
                else:
                    assert inserted == ABSENT
                    args.append(None)
            built[number] = graph.heads[match[number]].build(args)
        return built[0]

    def needs(self, graph: EGraph, match: Match) -> list[tuple[int, int]]:
        """Pairs of terms that had to be equal for the match to be there."""
        born = graph.born
        pairs = [(born[match[at.operator]][at.argument], match[inner]) for at, inner in self.inner]
        for first, *others in self.places:
            term = born[match[first.operator]][first.argument]
            pairs += [(term, born[match[at.operator]][at.argument]) for at in others]
        numbers = (born[match[at.operator]][at.argument] for at in self.literals)
        pairs += [(term, graph.constant_of(term)) for term in numbers]
        return [(a, b) for a, b in pairs if a != b]


@dataclass
class _Writer:
    """Writes the loops of one pattern."""

    guards: Mapping[str, Guard]
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # variable: where its class is
    places: dict[str, list[Position]] = field(default_factory=dict)
    inner: list[tuple[Position, int]] = field(default_factory=list)
    literals: list[Position] = field(default_factory=list)
    operators: list[Term] = field(default_factory=list)
    kinds: dict[Kind, int] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    depth: int = 1

    def say(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def keep(self, value: Any) -> str:
        """A name for a value in the written code."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def rows(self, term: Term) -> str:
        """Where the e-nodes of that operator are, by class."""
        return f"rows{self.kinds.setdefault(kind_of(term), len(self.kinds))}"

    def operator(self, term: Apply | Item, members: str) -> None:
        """Loops over those of the e-nodes `members` that match; what follows is inside them."""
        number = len(self.operators)
        self.operators.append(term)
        self.say(f"for n{number} in {members}:")
        self.depth += 1
        if number == 0:
            self.say("if now() > deadline: return")
        self.say(f"a{number} = args[n{number}]")
        parts: tuple[Term | None, ...] = (term.term,) if isinstance(term, Item) else term.args
        fresh: list[tuple[str, str]] = []
        inner: list[tuple[Apply | Item, str, Position]] = []
        for place, part in enumerate(parts):  # what costs least to look at goes first
            at = f"a{number}[{place}]"
            match part:
                case None:
                    self.say(f"if {at} != {ABSENT}: continue")
                case Literal():
                    self.literals.append(Position(number, place))
                case Variable(name, _):
                    self.places.setdefault(name, []).append(Position(number, place))
                    if name in self.names:
                        self.say(f"if {at} != {self.names[name]}: continue")
                    else:
                        if _optional(term, place):
                            self.say(f"if {at} == {ABSENT}: continue")
                        self.names[name] = at
                        fresh.append((name, at))
                case Apply() | Item():
                    inner.append((part, at, Position(number, place)))
        for part, at, spot in inner:
            self.say(f"m{number}_{spot.argument} = {self.rows(part)}.get({at})")
            self.say(f"if m{number}_{spot.argument} is None: continue")
        for name, at in fresh:
            if name in self.guards:
                self.say(f"if not {self.keep(self.guards[name])}[analyses[{at}].code]: continue")
        for place, part in enumerate(parts):
            if isinstance(part, Literal):
                at, value = f"a{number}[{place}]", self.keep(interned(part.value))
                self.say(f"if {at} == {ABSENT} or analyses[{at}].scalar is not {value}: continue")
        for part, _, spot in inner:
            self.inner.append((spot, len(self.operators)))
            self.operator(part, f"m{number}_{spot.argument}")


def _optional(term: Apply | Item, place: int) -> bool:
    if isinstance(term, Item):
        return False
    inputs = term.op.inputs
    return not inputs or inputs[min(place, len(inputs) - 1)].optional


def kind_of(term: Term) -> Kind:
    """What e-nodes a pattern's operator matches; raises ValueError for a variable or a number."""
    match term:
        case Apply(op, args, _, _):
            return kind(op, len(args))
        case Item(_, index):
            return kind(ITEM, 1, None if isinstance(index, str) else index)
    raise ValueError(f"a rule's left side must be an operator, not {term}")


def depth(term: Term | None) -> int:
    """How many operators lie one above the other."""
    match term:
        case Apply(_, args, _, _):
            return 1 + max((depth(arg) for arg in args), default=0)
        case Item(inner, _):
            return 1 + depth(inner)
    return 0


def loops(term: Term | None) -> int:
    """How many operators and outputs a pattern has, what it repeats counted each time."""
    match term:
        case Apply(_, args, _, _):
            return 1 + sum(map(loops, args))
        case Item(inner, _):
            return 1 + loops(inner)
    return 0


def shape(term: Term | None, names: dict[str, int]) -> Any:
    """The pattern up to the names of its variables, attributes aside: equal shapes share one search."""
    match term:
        case None:
            return None
        case Variable(name, _):
            return names.setdefault(name, len(names))
        case Literal(value):
            return ("literal", value)
        case Apply(op, args, _, _):
            return (op, *(shape(arg, names) for arg in args))
        case Item(inner, index):
            return (ITEM, None if isinstance(index, str) else index, shape(inner, names))
    raise TypeError(term)


def compiled(term: Term, guards: Mapping[str, Guard] | None = None) -> Pattern:
    """The pattern of one root, of at most LOOPS loops; `guards` of its variables by name."""
    writer = _Writer(guards or {})
    root = kind_of(term)
    assert isinstance(term, Apply | Item)
    writer.rows(term)
    writer.operator(term, "nodes")
    numbers = ", ".join(f"n{number}" for number in range(len(writer.operators)))
    writer.say(f"out.append(({numbers},))")
    writer.say("if len(out) >= most: return")
    firsts = [spots[0] for spots in writer.places.values()]
    terms = "".join(f"born[match[{first.operator}]][{first.argument}], " for first in firsts)
    source = "def search(nodes, rows, args, analyses, out, most, deadline):\n"
    source += f"    {' '.join(f'rows{k},' for k in range(len(writer.kinds)))} = rows\n"
    source += "\n".join(writer.lines)
    source += f"\ndef bind(born, match):\n    return ({terms})"
    return Pattern(
        root=root,
        kinds=tuple(writer.kinds),
        below=tuple(
            (at.argument, kind_of(writer.operators[number])) for at, number in writer.inner if not at.operator
        ),
        variables=tuple(writer.places),
        places=tuple(tuple(spots) for spots in writer.places.values()),
        inner=tuple(writer.inner),
        literals=tuple(writer.literals),
        operators=tuple(writer.operators),
        depth=depth(term),
        source=source,
        constants=writer.constants,
    )


def sift(pattern: Pattern, known: str) -> Sift:
    """Calls `act` for each match whose heads and variables have plans, which are looked up or made.

    What is `known` of the variables is the `code` or `content` of analyses; what has no plan is `refused`.
    """
    matched, firsts = range(len(pattern.operators)), [spots[0] for spots in pattern.places]
    classes = "".join(f"c{k}, " for k in range(len(firsts)))
    key = "".join(f"heads[n{k}], " for k in matched)
    key += "".join(f"analyses[c{k}].{known}, " for k in range(len(firsts)))
    if pattern.literals:  # a literal is matched by value, and its shape may decide about the root's
        key += "analyses[find(n0)].types, "
    lines = ["def sift(matches, tried, args, heads, analyses, parents, find, plans, plan, act, refused):"]
    lines += ["    for match in matches:", "        if match in tried: continue"]
    lines += [f"        {''.join(f'n{k}, ' for k in matched)} = match"]
    for place, first in enumerate(firsts):
        lines += [f"        c{place} = args[n{first.operator}][{first.argument}]"]
        lines += [f"        if parents[c{place}] != c{place}: c{place} = find(c{place})"]
    lines += [f"        key = ({key})", "        known = plans.get(key)"]
    lines += [f"        if known is None: known = plan(key, match, ({classes}))"]
    lines += [f"        if known: act(match, ({classes}), known)", "        else: refused.append(match)"]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<matches of {pattern.root}>", "exec"), scope)
    made: Sift = scope["sift"]
    return made
