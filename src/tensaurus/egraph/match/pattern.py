"""Compiles patterns to Python code: nested loops over the e-nodes of each class, by operator.

A pattern is one root of a rule's left side with its variables numbered in the order in which they occur, so
that rules which differ in names share one search (TENSAT, section 4: canonical patterns).  Conditions on the
types of one variable are checked inside the loops, before a match is complete.  Add(Mul(x, y), x) becomes,
without the checks of the deadline and of the number of matches:

    for n0 in nodes:                    # the e-nodes of Add
        a0 = args[n0]                   # the classes of the arguments
        m0_0 = rows1.get(a0[0])         # the e-nodes of Mul in the class of the first argument
        if m0_0 is None: continue
        for n1 in m0_0:
            a1 = args[n1]
            if a1[0] != a0[1]: continue
            out.append((n0, n1,))
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from tensaurus.egraph.core.class_analysis import intern_number
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.core.enode_head import Kind, enode_kind
from tensaurus.graph.ir.node import ITEM, Node
from tensaurus.rules.language.term import Apply, Item, Literal, Term, Variable

__all__ = [
    "MAX_LOOPS",
    "Guard",
    "Match",
    "Pattern",
    "Rows",
    "PlanLookup",
    "compile_pattern",
    "count_loops",
    "pattern_shape",
    "compile_plan_lookup",
]

MAX_LOOPS = 20  # the limit of Python on nested loops

Match = tuple[int, ...]  # the e-nodes that a pattern's operators matched, outermost first
OriginalArgs = Sequence[tuple[int, ...]]  # `EGraph.original_args`
Rows = Mapping[int, list[int]]  # for each class its e-nodes of one kind
Guard = Mapping[int, bool]  # whether conditions on one variable hold, by `Analysis.code` of its class
# takes roots, the rows of each kind, `EGraph.args`, `EGraph.analyses`, where to append matches, their limit,
# and the deadline
Search = Callable[[Sequence[int], Sequence[Rows], Any, Any, list[Match], float, float], None]
Bind = Callable[[OriginalArgs, Match], tuple[int, ...]]
PlanLookup = Callable[..., None]  # a function that `compile_plan_lookup` compiles


@dataclass(frozen=True)
class Position:
    """An argument of a matched e-node: the number of the operator in the pattern, and of the argument."""

    operator: int
    argument: int


@dataclass(eq=False)
class Pattern:
    """One root of a rule's left side, compiled.

    kinds      the kinds of its operators (see `enode_kind`), each once, that of the root first
    below      for each argument of the root that is an operator: (which argument, its kind)
    places     the positions of each of the `variables`
    inner      the positions of operators below the root, with their numbers
    literals   the positions of numeric constants
    operators  the operators (Apply or Item), outermost first: an operator's number is its place here
    depth      levels of classes that decide about a match (`count_levels`)
    source     the Python code of `search` and `bind`
    constants  the values of names in the code
    """

    root: Kind
    kinds: tuple[Kind, ...]
    below: tuple[tuple[int, Kind], ...]
    variables: tuple[str, ...]
    places: tuple[tuple[Position, ...], ...]
    inner: tuple[tuple[Position, int], ...]
    literals: tuple[Position, ...]
    operators: tuple[Term, ...]
    depth: int
    source: str
    constants: Mapping[str, Any]

    @cached_property
    def search(self) -> Search:
        """The function that searches for matches among given roots, up to a number or a deadline."""
        search: Search = self._functions["search"]
        return search

    @cached_property
    def bind(self) -> Bind:
        """The function that returns the terms of all variables in a match."""
        bind: Bind = self._functions["bind"]
        return bind

    @cached_property
    def _functions(self) -> dict[str, Any]:
        """The functions that the source defines, compiled at first use: a model needs few patterns."""
        scope: dict[str, Any] = {"now": monotonic, **self.constants}
        exec(compile(self.source, f"<pattern {self.root}>", "exec"), scope)  # written from operators only
        return scope

    def instance(self, graph: EGraph, match: Match, terms: Sequence[int]) -> Node:
        """Return the matched program, with these terms in place of the variables."""
        return self.over(graph, match, [graph.term(term) for term in terms])

    def over(self, graph: EGraph, match: Match, nodes: Sequence[Node]) -> Node:
        """Return the matched operators over these nodes in place of the variables."""
        inner = {(at.operator, at.argument): number for at, number in self.inner}
        spots = {(s.operator, s.argument): k for k, group in enumerate(self.places) for s in group}
        literals = {(at.operator, at.argument) for at in self.literals}
        built: dict[int, Node] = {}
        for number in reversed(range(len(match))):  # inner operators have higher numbers
            args: list[Node | None] = []
            for argument, inserted in enumerate(graph.original_args[match[number]]):
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
        """Return the pairs of terms that must be equal for the match to hold.

        The search compares classes.  So an argument and the e-node matched below it, the occurrences of one
        variable, and a literal and its constant may be equal by earlier unions only, which a proof cites.
        """
        original_args = graph.original_args
        pairs = [(original_args[match[at.operator]][at.argument], match[inner]) for at, inner in self.inner]
        for first, *others in self.places:
            term = original_args[match[first.operator]][first.argument]
            pairs += [(term, original_args[match[at.operator]][at.argument]) for at in others]
        numbers = (original_args[match[at.operator]][at.argument] for at in self.literals)
        pairs += [(term, graph.constant_of(term)) for term in numbers]
        return [(a, b) for a, b in pairs if a != b]


@dataclass
class _Writer:
    """Writes the loops of one pattern."""

    guards: Mapping[str, Guard]
    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # Python code for each variable's class
    places: dict[str, list[Position]] = field(default_factory=dict)
    inner: list[tuple[Position, int]] = field(default_factory=list)
    literals: list[Position] = field(default_factory=list)
    operators: list[Term] = field(default_factory=list)
    kinds: dict[Kind, int] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    depth: int = 1  # levels by which the next line is indented

    def write_line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name_constant(self, value: Any) -> str:
        """Return a name for a value in the written code."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def rows(self, term: Term) -> str:
        """Return the name of the rows of an operator's e-nodes."""
        return f"rows{self.kinds.setdefault(kind_of(term), len(self.kinds))}"

    def write_loops(self, term: Apply | Item, members: str) -> None:
        """Write loops over the e-nodes `members` that match; later lines are inside these loops."""
        number = len(self.operators)
        self.operators.append(term)
        self.write_line(f"for n{number} in {members}:")
        self.depth += 1
        if number == 0:
            self.write_line("if now() > deadline: return")
        self.write_line(f"a{number} = args[n{number}]")
        parts: tuple[Term | None, ...] = (term.term,) if isinstance(term, Item) else term.args
        fresh: list[tuple[str, str]] = []  # (name, code of its class) of variables that are bound here
        inner: list[tuple[Apply | Item, str, Position]] = []  # operators among the arguments
        for place, part in enumerate(parts):  # the cheapest checks come first
            code = f"a{number}[{place}]"
            match part:
                case None:
                    self.write_line(f"if {code} != {ABSENT}: continue")
                case Literal():
                    self.literals.append(Position(number, place))
                case Variable(name, _):
                    self.places.setdefault(name, []).append(Position(number, place))
                    if name in self.names:
                        self.write_line(f"if {code} != {self.names[name]}: continue")
                    else:
                        if _optional(term, place):
                            self.write_line(f"if {code} == {ABSENT}: continue")
                        self.names[name] = code
                        fresh.append((name, code))
                case Apply() | Item():
                    inner.append((part, code, Position(number, place)))
        for part, code, position in inner:
            self.write_line(f"m{number}_{position.argument} = {self.rows(part)}.get({code})")
            self.write_line(f"if m{number}_{position.argument} is None: continue")
        for name, code in fresh:
            if name in self.guards:
                guard = self.name_constant(self.guards[name])
                self.write_line(f"if not {guard}[analyses[{code}].code]: continue")
        for place, part in enumerate(parts):
            if isinstance(part, Literal):
                code, value = f"a{number}[{place}]", self.name_constant(intern_number(part.value))
                self.write_line(f"if {code} == {ABSENT} or analyses[{code}].scalar is not {value}: continue")
        for part, _, position in inner:
            self.inner.append((position, len(self.operators)))
            self.write_loops(part, f"m{number}_{position.argument}")


def _optional(term: Apply | Item, place: int) -> bool:
    """Return whether an operator may lack this argument: a variable matches only arguments that exist."""
    if isinstance(term, Item):
        return False
    inputs = term.op.inputs
    return not inputs or inputs[min(place, len(inputs) - 1)].is_optional


def kind_of(term: Term) -> Kind:
    """Return the kind of e-nodes that an operator matches; raises ValueError for a variable or a number."""
    match term:
        case Apply(op, args, _, _):
            return enode_kind(op, len(args))
        case Item(_, index):
            return enode_kind(ITEM, 1, None if isinstance(index, str) else index)
    raise ValueError(f"a rule's left side must be an operator, not {term}")


def count_levels(term: Term | None, compared: Container[str]) -> int:
    """Return how many levels of classes decide whether a pattern matches; the root's class is the first.

    A match can appear only when one of these classes changes, so after a change in a class the pattern is
    searched again in classes up to one level less above it.  Beside each operator's class these classes
    decide: of a variable in `compared`, which occurs twice (its occurrences must be one class) or is guarded
    (its types must meet conditions), and of a number (the class must be known to be this number).
    Exp(x) has one level; Max(x, x), Mul(x, 1) and Exp(Neg(x)) have two.
    """
    match term:
        case Apply(_, args, _, _):
            return 1 + max((count_levels(arg, compared) for arg in args), default=0)
        case Item(inner, _):
            return 1 + count_levels(inner, compared)
        case Variable(name, _):
            return int(name in compared)
        case Literal():
            return 1
    return 0


def count_loops(term: Term | None) -> int:
    """Return how many loops a pattern needs: one for each occurrence of an operator or an output."""
    match term:
        case Apply(_, args, _, _):
            return 1 + sum(map(count_loops, args))
        case Item(inner, _):
            return 1 + count_loops(inner)
    return 0


def pattern_shape(term: Term | None, names: dict[str, int]) -> Any:
    """Return the pattern without attributes, its variables numbered as they occur.

    `names` collects the numbers.  Terms of equal shapes share one search.
    """
    match term:
        case None:
            return None
        case Variable(name, _):
            return names.setdefault(name, len(names))
        case Literal(value):
            return ("literal", value)
        case Apply(op, args, _, _):
            return (op, *(pattern_shape(arg, names) for arg in args))
        case Item(inner, index):
            return (ITEM, None if isinstance(index, str) else index, pattern_shape(inner, names))
    raise TypeError(term)


def compile_pattern(term: Term, guards: Mapping[str, Guard] | None = None) -> Pattern:
    """Compile one root, of at most MAX_LOOPS loops; `guards` of its variables by name."""
    writer = _Writer(guards or {})
    root = kind_of(term)
    assert isinstance(term, Apply | Item)
    writer.rows(term)
    writer.write_loops(term, "nodes")
    numbers = ", ".join(f"n{number}" for number in range(len(writer.operators)))
    writer.write_line(f"out.append(({numbers},))")
    writer.write_line("if len(out) >= most: return")
    firsts = [spots[0] for spots in writer.places.values()]
    compared = {name for name, spots in writer.places.items() if len(spots) > 1 or name in writer.guards}
    terms = "".join(f"original_args[match[{first.operator}]][{first.argument}], " for first in firsts)
    source = "def search(nodes, rows, args, analyses, out, most, deadline):\n"
    source += f"    {' '.join(f'rows{k},' for k in range(len(writer.kinds)))} = rows\n"
    source += "\n".join(writer.lines)
    source += f"\ndef bind(original_args, match):\n    return ({terms})"
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
        depth=count_levels(term, compared),
        source=source,
        constants=writer.constants,
    )


def compile_plan_lookup(pattern: Pattern, fact: str) -> PlanLookup:
    """Compile the loop that handles the new matches of a pattern.

    A plan is what one rule inserts for a match (`plan.Plan`).  It depends only on the heads of the matched
    e-nodes and on what is known of the variables' classes, so plans are kept in `plans` by these; `fact`
    names the attribute of `Analysis` in the key: "code" (types) or "content" (values, too).

    The loop skips matches in `tried`.  It looks up the plans of each other match, or has them made by `plan`,
    and passes them to `act`.  A match without plans is appended to `refused`, to be tried again when more is
    known of classes.
    """
    matched, firsts = range(len(pattern.operators)), [spots[0] for spots in pattern.places]
    classes = "".join(f"c{k}, " for k in range(len(firsts)))
    key = "".join(f"heads[n{k}], " for k in matched)
    key += "".join(f"analyses[c{k}].{fact}, " for k in range(len(firsts)))
    if pattern.literals:  # a literal is matched by its value, but its shape may decide about the root's shape
        key += "analyses[find(n0)].types, "
    lines = [
        "def look_up_plans("
        "matches, tried, args, heads, analyses, union_find, find, plans, plan, act, refused):"
    ]
    lines += ["    for match in matches:", "        if match in tried: continue"]
    lines += [f"        {''.join(f'n{k}, ' for k in matched)} = match"]
    for place, first in enumerate(firsts):
        lines += [f"        c{place} = args[n{first.operator}][{first.argument}]"]
        lines += [f"        if union_find[c{place}] != c{place}: c{place} = find(c{place})"]
    lines += [f"        key = ({key})", "        known = plans.get(key)"]
    lines += [f"        if known is None: known = plan(key, match, ({classes}))"]
    lines += [f"        if known: act(match, ({classes}), known)", "        else: refused.append(match)"]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<matches of {pattern.root}>", "exec"), scope)
    made: PlanLookup = scope["look_up_plans"]
    return made
