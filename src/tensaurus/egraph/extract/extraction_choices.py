"""Lists the choices of an extraction from an e-graph: e-nodes, and chains of e-nodes that a runtime fuses.

A class that depends on constants only is computed ahead of time, by one program chosen beforehand.  It costs
the bytes of its elements, once for each kind of kernel that reads them, as each kind packs a copy in a layout
of its own.

A search prices the `pieces`, has an extractor solve the `problem`, and makes its answer a `program`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, TypeAlias

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.extract.greedy import greedy
from tensaurus.egraph.extract.problem import Choice, Problem, needed
from tensaurus.egraph.match.match_index import MatchIndex
from tensaurus.egraph.match.pattern import Match, Pattern
from tensaurus.graph.ir.census import tensor_bytes
from tensaurus.graph.ir.node import CONSTANT, Node, Type
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType
from tensaurus.system.garbage_collector import pause_collector

__all__ = ["Choices", "Place"]

Place: TypeAlias = tuple[int, ...]  # the e-nodes of a choice: its name in every extraction from the e-graph

MAX_FUSED_MATCHES = 20_000  # of one fusion pattern
SMALL_BYTES = 1 << 16  # of constants below this no copies for several kinds of kernels are counted


@dataclass(frozen=True)
class _FusedMatch:
    """The e-nodes of one match of a fusion pattern, extracted as one choice."""

    pattern: Pattern
    match: Match


class Choices:
    """The choices of each class below the roots.  Classes are numbered anew here, as in `problem`.

    keys      for each choice an index into `pieces`; -1 for inputs, constants, opaque nodes and outputs of
              calls, which take no time
    pieces    for each key one piece, whose time is the cost of all choices of this key
    kept      for each choice the bytes of the constant that it is, or 0
    stored    the bytes of the constant in a file: where the model computes it from smaller ones, their bytes
    packed    the bytes that kernels read of the constant; where several kinds of kernels read it, each kind
              reads a copy, which is a choice of its own
    """

    @pause_collector()
    def __init__(
        self,
        graph: EGraph,
        roots: Sequence[int],
        fusions: Sequence[Pattern] = (),
        before: float = inf,
        own: int = 0,
        packing: Callable[[Piece], str] = lambda piece: "",
    ):
        """List the choices among e-nodes numbered below `before`.

        The model itself has those below `own`: where both are equal, only its own e-nodes are choices.
        Kernels of pieces with one `packing` share a copy of a constant.
        """
        self.graph, self._before, self._own, self._packing = graph, before, own, packing
        self.keys: list[int] = []
        self.pieces: list[Piece] = []
        self.kept: list[int] = []
        self.stored: list[int] = []
        self.packed: list[int] = []
        self._numbers: dict[int, int] = {}  # the problem's number of each class of the e-graph
        self._codes: dict[int, int] = {}  # `Analysis.code` of each class of the e-graph
        self._members: list[list[int]] = []
        self._children: list[tuple[int, ...]] = []
        self._groups: list[int] = []
        self._sources: list[int | _FusedMatch | None] = []  # of each choice; None: a copy of its child
        self._known: dict[Any, int] = {}  # {all that determines a piece: its key}
        self._bytes: dict[tuple[Type, ...], int] = {}
        self._constants: dict[int, int] = {}  # the e-node of each class that is computed ahead of time
        self._todo: list[int] = []  # classes whose e-nodes are still to be added
        self._self_reading: set[int] = set()  # e-nodes that read their own class: no program has them
        self._roots = [self._number(graph.find(root)) for root in roots]
        self._add_enodes()
        if fusions:
            self._add_fusions(fusions)
        self._add_packed_copies()

    def _number(self, group: int) -> int:
        """Return the problem's number of a class of the e-graph; a new class is queued."""
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self._members)
            self._codes[group] = self.graph.analyses[group].code
            self._members.append([])
            self._todo.append(group)
        return number

    def _add_enodes(self) -> None:
        """Add the e-nodes of every class; of e-nodes with equal cost and arguments only the oldest."""
        graph, numbers, known, codes, todo = self.graph, self._numbers, self._known, self._codes, self._todo
        before, heads, args = self._before, graph.heads, graph.args
        append, sources = self._add_choice, self._sources
        while todo:
            group = todo.pop()
            if graph.analyses[group].static:  # computed ahead of time: one choice, which reads nothing
                self._add_constant(group)
                continue
            own, live = numbers[group], graph.live_members(group)
            seen: dict[Any, int] = {}  # the first choice of the class with this cost and these reads
            for node in live:
                if node >= before:
                    continue
                classes = args[node]
                if group in classes:
                    self._self_reading.add(node)
                    continue
                reads = []
                for read in classes:
                    if read != ABSENT:
                        number = numbers.get(read)
                        reads.append(self._number(read) if number is None else number)
                if len(reads) > 1:
                    reads = sorted(set(reads))
                head = heads[node]
                if isinstance(head.op, Op):
                    signature = (head, *[-1 if read == ABSENT else codes[read] for read in classes])
                    if len(reads) < len(classes):  # some arguments may be equal: another piece
                        signature += (_equal_args(classes),)
                    key = known.get(signature, -1)
                    if key < 0:
                        key = known[signature] = len(self.pieces)
                        self.pieces.append(self._piece(node))
                else:
                    key = -1
                if len(live) > 1:
                    alike = seen.setdefault((key, head if key < 0 else None, *reads), len(sources))
                    if alike < len(sources):
                        if node < sources[alike]:  # type: ignore[operator]  # keep the oldest
                            sources[alike] = node
                        continue
                append(own, node, tuple(reads), key)

    def _add_choice(
        self, number: int, source: int | _FusedMatch | None, reads: tuple[int, ...], key: int, kept: int = 0
    ) -> None:
        self._members[number].append(len(self._sources))
        self._sources.append(source)
        self._groups.append(number)
        self._children.append(reads)
        self.keys.append(key)
        self.kept.append(kept)
        self.stored.append(kept)
        self.packed.append(kept)

    def _add_constant(self, group: int) -> None:
        size = self._size(group)  # any e-node stands for the class: `_choose_constants` finds its program
        self._add_choice(self._numbers[group], min(self.graph.live_members(group)), (), -1, size)
        self.stored[-1] = int(min(size, self._unfolded_bytes(group)))

    def _size(self, group: int) -> int:
        """Return the bytes of a class's elements."""
        types = self.graph.analyses[group].types
        size = self._bytes.get(types)
        if size is None:
            size = sum(tensor_bytes(kind) for kind in types if isinstance(kind, TensorType))
            self._bytes[types] = size
        return size

    def _unfolded_bytes(self, group: int) -> float:
        """Return the bytes of the constants from which the model itself computes a class, or infinity."""
        seen, waiting, total = {group}, [group], 0
        while waiting:
            at = waiting.pop()
            if (node := min(self.graph.live_members(at))) >= self._own:  # the model lacks this class
                return inf
            if self.graph.heads[node].op is CONSTANT:
                total += self._size(at)
            reads = {self.graph.find(read) for read in self.graph.args[node] if read != ABSENT} - seen
            seen |= reads
            waiting += reads
        return total

    def _add_fusions(self, fusions: Sequence[Pattern]) -> None:
        """Add a choice for each match of a fusion pattern, all of whose e-nodes compute at run time."""
        graph, numbers, find = self.graph, self._numbers, self.graph.find
        table = MatchIndex()
        table.update(graph, [group for group in numbers if not graph.analyses[group].static])
        for pattern in fusions:
            for match in table.search(graph, pattern, most=MAX_FUSED_MATCHES):
                if self._self_reading.isdisjoint(match) and max(match) < self._before:
                    classes = tuple([find(term) for term in pattern.bind(graph.original_args, match)])
                    own, reads = numbers[find(match[0])], [numbers[group] for group in classes]
                    if own not in reads:  # else a cycle
                        source = _FusedMatch(pattern, match)
                        key = self._fused_key(source, classes)
                        self._add_choice(own, source, tuple(dict.fromkeys(reads)), key)

    def _add_packed_copies(self) -> None:
        """Give a large constant that several kinds of kernels read a copy for each: a class that reads it."""
        large = {group for group, size in zip(self._groups, self.kept, strict=True) if size >= SMALL_BYTES}
        readers: dict[int, dict[str, list[int]]] = {}  # {constant: {kind of kernel: choices that read it}}
        for number, reads in enumerate(self._children):
            for read in reads:
                if read in large:
                    kind = self._packing(self.pieces[self.keys[number]]) if self.keys[number] >= 0 else ""
                    readers.setdefault(read, {}).setdefault(kind, []).append(number)
        for group, kinds in readers.items():
            if len(kinds) == 1:
                continue
            (constant,) = self._members[group]
            self.packed[constant] = 0  # its copies have the bytes
            for numbers in kinds.values():
                copy = len(self._members)
                self._members.append([])
                self._add_choice(copy, None, (group,), -1)
                self.packed[-1] = self.kept[constant]
                for number in numbers:
                    reads = self._children[number]
                    self._children[number] = tuple(copy if read == group else read for read in reads)

    def _fused_key(self, source: _FusedMatch, classes: tuple[int, ...]) -> int:
        heads = [self.graph.heads[number] for number in source.match]
        signature = (source.pattern, *heads, *[self._codes[group] for group in classes], _equal_args(classes))
        key = self._known.get(signature)
        if key is None:
            key = self._known[signature] = len(self.pieces)
            self.pieces.append(self._piece(source))
        return key

    def _piece(self, source: int | _FusedMatch) -> Piece:
        """Return the piece of an e-node or a fused match, as its term."""
        graph = self.graph
        if isinstance(source, int):
            return Piece.of(graph.term(source))
        terms = source.pattern.bind(graph.original_args, source.match)
        root = source.pattern.instance(graph, source.match, terms)
        return Piece(root, tuple(dict.fromkeys(graph.term(term) for term in terms)))

    def problem(self, costs: Sequence[float]) -> Problem:
        """Return the problem with these costs of all choices; choices of infinite cost are left out."""
        members: Sequence[Sequence[int]] = self._members
        if inf in costs:
            members = [[number for number in group if costs[number] < inf] for group in members]
        return Problem(costs, self._children, self._groups, members, self._roots)

    def price_choices(self, costs: Sequence[float], seconds_per_byte: float = 0.0) -> list[float]:
        """Return the cost of each choice: that of its key, or the price of the bytes of a constant."""
        keyed = zip(self.keys, self.packed, strict=True)
        return [costs[key] if key >= 0 else seconds_per_byte * packed for key, packed in keyed]

    def stored_bytes(self, choice: Choice) -> int:
        """Return the bytes of constants that the program stores in its file."""
        return sum(self.stored[number] for number in choice.values())

    def packed_bytes(self, choice: Choice) -> int:
        """Return the bytes of constants that the program's kernels read, a copy for each kind of kernel."""
        return sum(self.packed[number] for number in choice.values())

    def place(self, number: int) -> Place:
        """Return the e-nodes of a choice, () for a copy of a constant: the same in every extraction."""
        source = self._sources[number]
        return () if source is None else (source,) if isinstance(source, int) else source.match

    def places(self, choice: Choice) -> tuple[Place, ...]:
        """Return the places of all choices of a program."""
        return tuple(self.place(number) for number in choice.values())

    def choice_at(self, places: Iterable[Place]) -> dict[int, int]:
        """Return the program whose choices have these places; {} where some of them are not choices here."""
        choice = {group: members[0] for group, members in enumerate(self._members) if len(members) == 1}
        for place in places:
            number = self._number_by_place.get(place)
            if number is not None:
                choice[self._groups[number]] = number
        return needed(self.problem([0.0] * len(self.keys)), choice)

    @cached_property
    def _number_by_place(self) -> dict[Place, int]:
        return {self.place(number): number for number in range(len(self._sources))}

    def program(self, original: Program, choice: Choice) -> Program:
        """Return the program of a choice, with the original's inputs, names and outputs.

        Raises ValueError where the choice is cyclic or incomplete.
        """
        built = self._build_nodes(choice)
        return original.with_outputs([built[root] for root in self._roots])

    def computed_nodes(self, choice: Choice) -> dict[int, frozenset[Node]]:
        """Return for each choice with a cost the nodes of the program that it computes."""
        built = self._build_nodes(choice)
        nodes = {}
        for group, number in choice.items():
            if self.keys[number] >= 0 and group in built:
                leaves = [built[child] for child in self._children[number]]
                nodes[number] = frozenset(Piece(built[group], tuple(leaves)).inner)
        return nodes

    def _build_nodes(self, choice: Choice) -> dict[int, Node]:
        """Return the node of each class of the problem that the program computes."""
        order = self.problem([0.0] * len(self.keys)).order(choice)
        if order is None:
            raise ValueError("the choice is cyclic or incomplete")
        graph, find = self.graph, self.graph.find
        chosen = [self._sources[choice[number]] for number in order]
        terms = [  # the e-nodes that each choice reads, ABSENT for a missing one
            graph.args[source]
            if isinstance(source, int)
            else source.pattern.bind(graph.original_args, source.match)
            if source is not None
            else ()
            for source in chosen
        ]
        # programs of the constants, which the problem holds only as choices without reads
        wanted = {find(term) for read in terms for term in read if term != ABSENT}
        wanted |= {find(source) for source in chosen if isinstance(source, int)}
        self._choose_constants([group for group in wanted if graph.analyses[group].static])
        constants: dict[int, Node] = {}  # by class of the e-graph
        built: dict[int, Node] = {}

        def node_of(group: int) -> Node:
            node = built.get(self._numbers.get(group, -1))
            return self._build_constant(group, constants) if node is None else node

        for number, source, reads in zip(order, chosen, terms, strict=True):
            if isinstance(source, int) and graph.analyses[find(source)].static:
                built[number] = self._build_constant(find(source), constants)
                continue
            read = [None if term == ABSENT else node_of(find(term)) for term in reads]
            if isinstance(source, int):
                built[number] = graph.heads[source].build(read)
            elif source is None:  # copies exist for costs only
                (constant,) = self._children[choice[number]]
                built[number] = built[constant]
            else:
                built[number] = source.pattern.over(graph, source.match, read)  # type: ignore[arg-type]
        return built

    def _build_constant(self, group: int, built: dict[int, Node]) -> Node:
        """Return the program of a class that depends on constants only; `built` are those made before."""
        graph = self.graph
        stack = [group]
        while stack:
            top = stack[-1]
            args = graph.args[self._constants[top]]
            missing = [a for a in args if a != ABSENT and a not in built]
            if top not in built and missing:
                stack.extend(missing)
                continue
            if top not in built:
                read = [None if a == ABSENT else built[a] for a in args]
                built[top] = graph.heads[self._constants[top]].build(read)
            stack.pop()
        return built[group]

    def _choose_constants(self, wanted: Sequence[int]) -> None:
        """Choose an e-node for each class that depends on constants only; together they have no cycle.

        The smallest programs are chosen, as they round least; among equals the oldest e-node, so that the
        program of a class does not depend on the other classes that are wanted.
        """
        graph = self.graph
        below = [group for group in wanted if group not in self._constants]  # and the classes below them
        numbers = {group: number for number, group in enumerate(below)}
        choices: list[tuple[int, int]] = []  # e-node, class
        for group in below:  # the list grows in the loop
            for node in graph.live_members(group):
                choices.append((node, group))
                for read in graph.args[node]:
                    if read != ABSENT and read not in numbers and graph.analyses[read].static:
                        numbers[read] = len(below)
                        below.append(read)
        choices.sort()
        members: list[list[int]] = [[] for _ in below]
        children: list[tuple[int, ...]] = []
        owners: list[int] = []  # the class of each choice
        nodes: list[int] = []  # its e-node
        for node, group in choices:
            reads = {read for read in graph.args[node] if read != ABSENT}
            if group not in reads and reads <= numbers.keys():
                members[numbers[group]].append(len(nodes))
                nodes.append(node)
                owners.append(numbers[group])
                children.append(tuple(numbers[read] for read in reads))
        chosen = greedy(Problem([1.0] * len(nodes), children, owners, members, ()))
        self._constants.update((below[number], nodes[node]) for number, node in chosen.items())


def _equal_args(classes: Sequence[int]) -> tuple[int, ...]:
    """Return for each argument the place of the first equal one; () where all differ."""
    return tuple([classes.index(c) for c in classes]) if len(set(classes)) < len(classes) else ()
