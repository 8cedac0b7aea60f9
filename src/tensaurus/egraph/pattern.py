"""Patterns compiled to Python: nested loops over the e-nodes of each class, by operator.

A pattern is one root of a rule's left side with its variables numbered in the order in which they occur, so
that rules which differ in names share one search (TENSAT, section 4: canonical patterns).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensaurus.egraph.egraph import ABSENT, EGraph, Kind, kind
from tensaurus.graph.node import ITEM, Node
from tensaurus.rules.term import Apply, Item, Literal, Term, Variable

__all__ = ["Match", "Pattern", "Table", "compiled"]

Match = tuple[int, ...]  # the e-nodes that a pattern's operators matched, outermost first
Born = Sequence[tuple[int, ...]]  # of each e-node, its arguments as it was inserted
Table = Mapping[int, Mapping[Kind, list[int]]]  # of each class, its e-nodes by kind


@dataclass(frozen=True)
class Place:
    """An argument of a matched e-node: the operator's number in the pattern, and the argument's."""

    operator: int
    argument: int


@dataclass(eq=False)
class Pattern:
    """One root, compiled.

    `places` are the occurrences of each variable, `inner` of operators, `literals` of numbers.
    """

    root: Kind
    search: Callable[[int, Table, Any, Any, list[Match]], None]  # of a class; the last list takes them
    bind: Callable[[Born, Match], tuple[int, ...]]  # the term that each variable stands for
    variables: tuple[str, ...]
    places: tuple[tuple[Place, ...], ...]
    inner: tuple[tuple[Place, int], ...]
    literals: tuple[Place, ...]
    operators: tuple[Term, ...]  # an Apply or Item each, as numbered
    depth: int
    source: str

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
            for argument, told in enumerate(graph.born[match[number]]):
                at = (number, argument)
                if at in inner:
                    args.append(built[inner[at]])
                elif at in spots:
                    args.append(nodes[spots[at]])
                elif at in literals:
                    args.append(graph.term(graph.known(told)))
                else:
                    assert told == ABSENT
                    args.append(None)
            built[number] = graph.heads[match[number]].build(args)
        return built[0]

    def needs(self, graph: EGraph, match: Match) -> list[tuple[int, int]]:
        """Pairs of terms that had to be equal for the match to be there."""
        born = graph.born
        pairs = [(born[match[at.operator]][at.argument], match[inner]) for at, inner in self.inner]
        for first, *others in self.places:
            told = born[match[first.operator]][first.argument]
            pairs += [(told, born[match[at.operator]][at.argument]) for at in others]
        numbers = (born[match[at.operator]][at.argument] for at in self.literals)
        pairs += [(told, graph.known(told)) for told in numbers]
        return [(a, b) for a, b in pairs if a != b]


@dataclass
class _Writer:
    """Writes the loops of one pattern."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # variable: where its class is
    places: dict[str, list[Place]] = field(default_factory=dict)
    inner: list[tuple[Place, int]] = field(default_factory=list)
    literals: list[Place] = field(default_factory=list)
    operators: list[Term] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    depth: int = 1

    def say(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def keep(self, value: Any) -> str:
        """A name for a value in the written code."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def operator(self, term: Apply | Item, where: str) -> None:
        """Loops over the e-nodes of class `where` that match; what follows is inside them."""
        number = len(self.operators)
        self.operators.append(term)
        self.say(f"for n{number} in table[{where}].get({kind_of(term)!r}, ()):")
        self.depth += 1
        self.say(f"a{number} = args[n{number}]")
        parts: tuple[Term | None, ...] = (term.term,) if isinstance(term, Item) else term.args
        todo: list[tuple[Apply | Item, str, Place]] = []
        for place, part in enumerate(parts):
            at = f"a{number}[{place}]"
            match part:
                case None:
                    self.say(f"if {at} != {ABSENT}: continue")
                case Literal(value):
                    self.literals.append(Place(number, place))
                    self.say(f"if {at} == {ABSENT} or facts[{at}].scalar != {self.keep(value)}: continue")
                case Variable(name, _):
                    self.places.setdefault(name, []).append(Place(number, place))
                    if name in self.names:
                        self.say(f"if {at} != {self.names[name]}: continue")
                    else:
                        self.say(f"if {at} == {ABSENT}: continue")
                        self.names[name] = at
                case Apply() | Item():
                    self.say(f"if {at} == {ABSENT}: continue")
                    todo.append((part, at, Place(number, place)))
        for part, at, spot in todo:
            self.inner.append((spot, len(self.operators)))
            self.operator(part, at)


def kind_of(term: Term) -> Kind:
    """What e-nodes a pattern's operator matches; raises ValueError for a variable or a number."""
    match term:
        case Apply(op, args, _, _):
            return kind(op, len(args))
        case Item(_, index):
            return kind(ITEM, 1, index)
    raise ValueError(f"a rule's left side must be an operator, not {term}")


def depth(term: Term | None) -> int:
    """How many operators lie one above the other."""
    match term:
        case Apply(_, args, _, _):
            return 1 + max((depth(arg) for arg in args), default=0)
        case Item(inner, _):
            return 1 + depth(inner)
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
            return (ITEM, index, shape(inner, names))
    raise TypeError(term)


def compiled(term: Term) -> Pattern:
    """The pattern of one root."""
    writer = _Writer()
    root = kind_of(term)
    assert isinstance(term, Apply | Item)
    writer.operator(term, "root")
    found = ", ".join(f"n{number}" for number in range(len(writer.operators)))
    writer.say(f"out.append(({found},))")
    firsts = [spots[0] for spots in writer.places.values()]
    terms = "".join(f"born[match[{first.operator}]][{first.argument}], " for first in firsts)
    source = "def search(root, table, args, facts, out):\n" + "\n".join(writer.lines)
    source += f"\ndef bind(born, match):\n    return ({terms})"
    scope: dict[str, Any] = dict(writer.constants)
    exec(compile(source, f"<pattern {root}>", "exec"), scope)  # written above from the rule's operators alone
    return Pattern(
        root=root,
        search=scope["search"],
        bind=scope["bind"],
        variables=tuple(writer.places),
        places=tuple(tuple(spots) for spots in writer.places.values()),
        inner=tuple(writer.inner),
        literals=tuple(writer.literals),
        operators=tuple(writer.operators),
        depth=depth(term),
        source=source,
    )
