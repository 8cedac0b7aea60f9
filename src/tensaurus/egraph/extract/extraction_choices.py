"""What can be extracted from an e-graph: its e-nodes, and chains of them that a runtime fuses.

What depends on constants alone is computed ahead of time, whatever it takes: of such a class one program is
chosen beforehand, and its cost is that of keeping its elements: once for each kind of kernel that reads them,
as runtimes keep constants the way that the kernel wants them.
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
from tensaurus.graph.ir.census import bytes_of
from tensaurus.graph.ir.node import CONSTANT, Node, Type
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType
from tensaurus.system.garbage_collector import collector_resting

__all__ = ["Choices", "Place"]

Place: TypeAlias = tuple[int, ...]

FUSED = 20_000  # places where one fusion may be
SMALL = 1 << 16  # bytes of a constant of which copies do not count


@dataclass(frozen=True)
class _Fused:
    """E-nodes that a pattern matched, extracted as one."""

    pattern: Pattern
    match: Match


class Choices:
    """The choices of each class below the roots; choices of one key cost the same.

    keys      of each choice, its place in `pieces`; -1 where it computes nothing
    pieces    of each key, one that has it: what to measure
    kept      of each choice, the bytes of the constant that it is
    stored    of each choice, the bytes that a file needs for it: of what the model itself computes from
              constants, and what may stay so, no more than these have
    packed    of each choice, the bytes that kernels read where they need it: of a constant that several kinds
              of kernels read, a choice for each kind stands between them and it
    """

    @collector_resting()
    def __init__(
        self,
        graph: EGraph,
        roots: Sequence[int],
        fusions: Sequence[Pattern] = (),
        before: float = inf,
        own: int = 0,
        packing: Callable[[Piece], str] = lambda piece: "",
    ):
        """Of the e-nodes older than `before`; those older than `own` are the model's own.

        Kernels of one `packing` keep a constant in the same way.
        """
        self.graph, self._before, self._own, self._packing = graph, before, own, packing
        self.keys: list[int] = []
        self.pieces: list[Piece] = []
        self.kept: list[int] = []
        self.stored: list[int] = []
        self.packed: list[int] = []
        self._numbers: dict[int, int] = {}  # of each class, its number in the problem
        self._codes: dict[int, int] = {}  # of each class, what its types are
        self._members: list[list[int]] = []
        self._children: list[tuple[int, ...]] = []
        self._groups: list[int] = []
        self._what: list[int | _Fused | None] = []  # of each choice; None: a copy of what it reads
        self._known: dict[Any, int] = {}
        self._bytes: dict[tuple[Type, ...], int] = {}
        self._constants: dict[int, int] = {}  # of each class that is computed ahead of time, how
        self._todo: list[int] = []
        self._looping: set[int] = set()  # e-nodes that read their own class: no program goes through them
        self._roots = [self._number(graph.find(root)) for root in roots]
        self._walk()
        if fusions:
            self._fuse(fusions)
        self._pack()

    def _number(self, group: int) -> int:
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self._members)
            self._codes[group] = self.graph.analyses[group].code
            self._members.append([])
            self._todo.append(group)
        return number

    def _walk(self) -> None:
        """The e-nodes of every class, of those that cost and read the same the oldest."""
        graph, numbers, known, codes, todo = self.graph, self._numbers, self._known, self._codes, self._todo
        before, heads, args = self._before, graph.heads, graph.args
        append, what = self._append, self._what
        while todo:
            group = todo.pop()
            if graph.analyses[group].static:
                self._keep(group)
                continue
            own, live = numbers[group], graph.live_members(group)
            seen: dict[Any, int] = {}
            for node in live:
                if node >= before:
                    continue
                classes = args[node]
                if group in classes:
                    self._looping.add(node)
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
                    if len(reads) < len(classes):
                        signature += (_twice(classes),)
                    key = known.get(signature, -1)
                    if key < 0:
                        key = known[signature] = len(self.pieces)
                        self.pieces.append(self._piece(node))
                else:
                    key = -1
                if len(live) > 1:
                    alike = seen.setdefault((key, head if key < 0 else None, *reads), len(what))
                    if alike < len(what):
                        if node < what[alike]:  # type: ignore[operator]
                            what[alike] = node
                        continue
                append(own, node, tuple(reads), key)

    def _append(
        self, number: int, what: int | _Fused | None, reads: tuple[int, ...], key: int, kept: int = 0
    ) -> None:
        self._members[number].append(len(self._what))
        self._what.append(what)
        self._groups.append(number)
        self._children.append(reads)
        self.keys.append(key)
        self.kept.append(kept)
        self.stored.append(kept)
        self.packed.append(kept)

    def _keep(self, group: int) -> None:
        size = self._size(group)
        self._append(self._numbers[group], min(self.graph.live_members(group)), (), -1, size)
        self.stored[-1] = int(min(size, self._unfolded(group)))

    def _size(self, group: int) -> int:
        """Return the bytes of a class's elements."""
        types = self.graph.analyses[group].types
        size = self._bytes.get(types)
        if size is None:
            size = sum(bytes_of(kind) for kind in types if isinstance(kind, TensorType))
            self._bytes[types] = size
        return size

    def _unfolded(self, group: int) -> float:
        """Return the bytes of the constants that the model computes this class from; infinite where the
        model itself has no such expression."""
        seen, waiting, total = {group}, [group], 0
        while waiting:
            at = waiting.pop()
            if (node := min(self.graph.live_members(at))) >= self._own:
                return inf
            if self.graph.heads[node].op is CONSTANT:
                total += self._size(at)
            reads = {self.graph.find(read) for read in self.graph.args[node] if read != ABSENT} - seen
            seen |= reads
            waiting += reads
        return total

    def _fuse(self, fusions: Sequence[Pattern]) -> None:
        """What matches the fusions; all that lies inside computes at run time."""
        graph, numbers, find = self.graph, self._numbers, self.graph.find
        table = MatchIndex()
        table.update(graph, [group for group in numbers if not graph.analyses[group].static])
        for pattern in fusions:
            for match in table.search(graph, pattern, most=FUSED):
                if self._looping.isdisjoint(match) and max(match) < self._before:
                    classes = tuple([find(term) for term in pattern.bind(graph.original_args, match)])
                    own, reads = numbers[find(match[0])], [numbers[group] for group in classes]
                    if own not in reads:
                        what = _Fused(pattern, match)
                        self._append(own, what, tuple(dict.fromkeys(reads)), self._fused_key(what, classes))

    def _pack(self) -> None:
        """Copies of the constants that several kinds of kernels read."""
        large = {group for group, size in zip(self._groups, self.kept, strict=True) if size >= SMALL}
        readers: dict[int, dict[str, list[int]]] = {}
        for number, reads in enumerate(self._children):
            for read in reads:
                if read in large:
                    kind = self._packing(self.pieces[self.keys[number]]) if self.keys[number] >= 0 else ""
                    readers.setdefault(read, {}).setdefault(kind, []).append(number)
        for group, kinds in readers.items():
            if len(kinds) == 1:
                continue
            (constant,) = self._members[group]
            self.packed[constant] = 0
            for numbers in kinds.values():
                copy = len(self._members)
                self._members.append([])
                self._append(copy, None, (group,), -1)
                self.packed[-1] = self.kept[constant]
                for number in numbers:
                    reads = self._children[number]
                    self._children[number] = tuple(copy if read == group else read for read in reads)

    def _fused_key(self, what: _Fused, classes: tuple[int, ...]) -> int:
        heads = [self.graph.heads[number] for number in what.match]
        signature = (what.pattern, *heads, *[self._codes[group] for group in classes], _twice(classes))
        key = self._known.get(signature)
        if key is None:
            key = self._known[signature] = len(self.pieces)
            self.pieces.append(self._piece(what))
        return key

    def _piece(self, what: int | _Fused) -> Piece:
        graph = self.graph
        if isinstance(what, int):
            return Piece.of(graph.term(what))
        terms = what.pattern.bind(graph.original_args, what.match)
        root = what.pattern.instance(graph, what.match, terms)
        return Piece(root, tuple(dict.fromkeys(graph.term(term) for term in terms)))

    def problem(self, costs: Sequence[float]) -> Problem:
        """With what each choice costs; what costs infinity is no choice."""
        members: Sequence[Sequence[int]] = self._members
        if inf in costs:
            members = [[number for number in group if costs[number] < inf] for group in members]
        return Problem(costs, self._children, self._groups, members, self._roots)

    def keyed(self, costs: Sequence[float], byte: float = 0.0) -> list[float]:
        """What each choice costs: by its key, and by the bytes that kernels read where it is a constant."""
        keyed = zip(self.keys, self.packed, strict=True)
        return [costs[key] if key >= 0 else byte * packed for key, packed in keyed]

    def memory(self, choice: Choice) -> int:
        """Bytes of the constants that a file of the choice stores."""
        return sum(self.stored[number] for number in choice.values())

    def footprint(self, choice: Choice) -> int:
        """Bytes of constants that its kernels read, a copy for each kind of kernel."""
        return sum(self.packed[number] for number in choice.values())

    def place(self, number: int) -> Place:
        """The e-nodes that a choice is made of, the same in every extraction from the e-graph.

        Empty of a copy of a constant.
        """
        what = self._what[number]
        return () if what is None else (what,) if isinstance(what, int) else what.match

    def places(self, choice: Choice) -> tuple[Place, ...]:
        """Of its choices."""
        return tuple(self.place(number) for number in choice.values())

    def at(self, places: Iterable[Place]) -> dict[int, int]:
        """The choice whose choices have these places; empty where they are not all here."""
        choice = {group: members[0] for group, members in enumerate(self._members) if len(members) == 1}
        for place in places:
            number = self._numbered.get(place)
            if number is not None:
                choice[self._groups[number]] = number
        return needed(self.problem([0.0] * len(self.keys)), choice)

    @cached_property
    def _numbered(self) -> dict[Place, int]:
        return {self.place(number): number for number in range(len(self._what))}

    def program(self, original: Program, choice: Choice) -> Program:
        """The program that the choice stands for, with the original's inputs, names and outputs.

        Raises ValueError where the choice is cyclic or incomplete.
        """
        built = self._built(choice)
        return original.with_outputs([built[root] for root in self._roots])

    def computed(self, choice: Choice) -> dict[int, frozenset[Node]]:
        """Of each choice that costs, the nodes of that program that it stands for."""
        built = self._built(choice)
        nodes = {}
        for group, number in choice.items():
            if self.keys[number] >= 0 and group in built:
                leaves = [built[child] for child in self._children[number]]
                nodes[number] = frozenset(Piece(built[group], tuple(leaves)).inner)
        return nodes

    def _built(self, choice: Choice) -> dict[int, Node]:
        """The node of each class."""
        order = self.problem([0.0] * len(self.keys)).order(choice)
        if order is None:
            raise ValueError("the choice is cyclic or incomplete")
        graph, find = self.graph, self.graph.find
        chosen = [self._what[choice[number]] for number in order]
        terms = [
            graph.args[what]
            if isinstance(what, int)
            else what.pattern.bind(graph.original_args, what.match)
            if what is not None
            else ()
            for what in chosen
        ]
        wanted = {find(term) for read in terms for term in read if term != ABSENT}
        wanted |= {find(what) for what in chosen if isinstance(what, int)}
        self._plan_constants([group for group in wanted if graph.analyses[group].static])
        constants: dict[int, Node] = {}
        built: dict[int, Node] = {}

        def node_of(group: int) -> Node:
            node = built.get(self._numbers.get(group, -1))
            return self._constant(group, constants) if node is None else node

        for number, what, reads in zip(order, chosen, terms, strict=True):
            if isinstance(what, int) and graph.analyses[find(what)].static:
                built[number] = self._constant(find(what), constants)
                continue
            read = [None if term == ABSENT else node_of(find(term)) for term in reads]
            if isinstance(what, int):
                built[number] = graph.heads[what].build(read)
            elif what is None:
                (constant,) = self._children[choice[number]]
                built[number] = built[constant]
            else:
                built[number] = what.pattern.over(graph, what.match, read)  # type: ignore[arg-type]
        return built

    def _constant(self, group: int, built: dict[int, Node]) -> Node:
        """The program of a class that depends on constants alone."""
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

    def _plan_constants(self, wanted: Sequence[int]) -> None:
        """An e-node for each of the classes that depend on constants alone; together they have no cycle.

        The smallest programs: what rounds least is what computes least.  Of equals the oldest e-node, so that
        a class's program does not depend on what else is wanted.
        """
        graph = self.graph
        below = [group for group in wanted if group not in self._constants]
        numbers = {group: number for number, group in enumerate(below)}
        choices: list[tuple[int, int]] = []  # e-node, class
        for group in below:  # grows meanwhile
            for node in graph.live_members(group):
                choices.append((node, group))
                for read in graph.args[node]:
                    if read != ABSENT and read not in numbers and graph.analyses[read].static:
                        numbers[read] = len(below)
                        below.append(read)
        choices.sort()
        members: list[list[int]] = [[] for _ in below]
        children: list[tuple[int, ...]] = []
        owners: list[int] = []
        nodes: list[int] = []
        for node, group in choices:
            reads = {read for read in graph.args[node] if read != ABSENT}
            if group not in reads and reads <= numbers.keys():
                members[numbers[group]].append(len(nodes))
                nodes.append(node)
                owners.append(numbers[group])
                children.append(tuple(numbers[read] for read in reads))
        chosen = greedy(Problem([1.0] * len(nodes), children, owners, members, ()))
        self._constants.update((below[number], nodes[node]) for number, node in chosen.items())


def _twice(classes: Sequence[int]) -> tuple[int, ...]:
    """Which arguments are one tensor; empty where none are."""
    return tuple([classes.index(c) for c in classes]) if len(set(classes)) < len(classes) else ()
