"""Lists the choices of an extraction from an e-graph: e-nodes, and chains of e-nodes that a runtime fuses.

If the runtime fuses Relu(Add(x, w)), the e-class of Relu has two choices: the e-node Relu, which reads the
e-class of Add, and the chain of both, which reads x and w.

A class that depends on constants only is computed ahead of time (`constant_programs`).  It costs the bytes of
its elements, once for each kind of kernel that reads them, as each kind packs a copy in a layout of its own.

A search prices the `pieces`, has an extractor solve the `problem`, and makes its answer a `program`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, TypeAlias

from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.extract.constant_programs import ConstantPrograms
from tensaurus.egraph.extract.problem import Problem, Selection, keep_needed
from tensaurus.egraph.match.match_index import MatchIndex
from tensaurus.egraph.match.pattern import Match, Pattern
from tensaurus.graph.ir.census import tensor_bytes
from tensaurus.graph.ir.node import CONSTANT, Node, Type
from tensaurus.graph.ir.piece import Piece
from tensaurus.graph.ir.program import Program
from tensaurus.ops import Op, TensorType
from tensaurus.system.garbage_collector import pause_collector

__all__ = ["Choices", "Place"]

Place: TypeAlias = tuple[int, ...]  # the e-nodes of a choice, by which every extraction finds it again

MAX_FUSED_MATCHES = 20_000  # of one fusion pattern
MIN_COPIED_BYTES = 1 << 16  # of smaller constants no copies for several kinds of kernels are counted
NO_PIECE = -1  # the key of a choice that takes no time: an input, a constant, an output of a call, opaque


@dataclass(frozen=True)
class _FusedMatch:
    """The e-nodes of one match of a fusion pattern, extracted as one choice."""

    pattern: Pattern
    match: Match


class Choices:
    """The choices of each class below the roots.  Classes have numbers of the problem here.

    pieces           pieces that are priced, each for all choices of equal cost
    keys             for each choice the number of its piece, or NO_PIECE
    constant_bytes   for each choice the bytes of the constant that it is, or 0
    bytes_in_file    the bytes that the constant needs in a file: where the model computes it from smaller
                     ones, their bytes
    bytes_in_kernel  the bytes that kernels read of the constant; where several kinds of kernels read it, each
                     kind reads a copy, which is a choice of its own
    """

    @pause_collector()
    def __init__(
        self,
        graph: EGraph,
        roots: Sequence[int],
        fusions: Sequence[Pattern] = (),
        enode_limit: float = inf,
        original_enodes: int = 0,
        packing: Callable[[Piece], str] = lambda piece: "",
    ):
        """List the choices among e-nodes numbered below `enode_limit`.

        The model itself has the e-nodes below `original_enodes`.  Kernels of pieces with one `packing` share
        a copy of a constant.
        """
        self.graph, self._enode_limit, self._original_enodes = graph, enode_limit, original_enodes
        self._packing = packing
        self.pieces: list[Piece] = []
        self.keys: list[int] = []
        self.constant_bytes: list[int] = []
        self.bytes_in_file: list[int] = []
        self.bytes_in_kernel: list[int] = []
        self._class_numbers: dict[int, int] = {}  # {class of the e-graph: its number in the problem}
        self._codes: dict[int, int] = {}  # {class of the e-graph: its `Analysis.code`}
        self._members: list[list[int]] = []  # this and the next two as in `Problem`
        self._children: list[tuple[int, ...]] = []
        self._class_of_choice: list[int] = []
        self._sources: list[int | _FusedMatch | None] = []  # of each choice; None: a copy of its child
        self._key_of_signature: dict[Any, int] = {}  # {all that determines a piece: its key}
        self._bytes_of_types: dict[tuple[Type, ...], int] = {}
        self._constants = ConstantPrograms(graph)
        self._unvisited: list[int] = []  # classes whose e-nodes are still to be added
        self._self_reading: set[int] = set()  # e-nodes that read their own class: no program has them
        self._roots = [self._class_number(graph.find(root)) for root in roots]
        self._add_enodes()
        if fusions:
            self._add_fusions(fusions)
        self._add_packed_copies()

    def _class_number(self, eclass: int) -> int:
        """Return the problem's number of a class of the e-graph; a new class is queued."""
        number = self._class_numbers.get(eclass)
        if number is None:
            number = self._class_numbers[eclass] = len(self._members)
            self._codes[eclass] = self.graph.analyses[eclass].code
            self._members.append([])
            self._unvisited.append(eclass)
        return number

    def _add_enodes(self) -> None:
        """Add the e-nodes of every class; of e-nodes with equal cost and arguments only the oldest."""
        graph, class_numbers, codes = self.graph, self._class_numbers, self._codes
        heads, args, unvisited, sources = graph.heads, graph.args, self._unvisited, self._sources
        key_of_signature = self._key_of_signature
        while unvisited:
            eclass = unvisited.pop()
            if graph.analyses[eclass].static:  # computed ahead of time: one choice, which reads nothing
                self._add_constant(eclass)
                continue
            own, live = class_numbers[eclass], graph.live_members(eclass)
            seen: dict[Any, int] = {}  # the first choice of the class with this cost and these reads
            for enode in live:
                if enode >= self._enode_limit:
                    continue
                classes = args[enode]
                if eclass in classes:
                    self._self_reading.add(enode)
                    continue
                reads = []
                for read in classes:
                    if read != ABSENT:
                        number = class_numbers.get(read)
                        reads.append(self._class_number(read) if number is None else number)
                if len(reads) > 1:
                    reads = sorted(set(reads))
                head = heads[enode]
                if isinstance(head.op, Op):
                    signature = (head, *[-1 if read == ABSENT else codes[read] for read in classes])
                    if len(reads) < len(classes):  # some arguments may be equal: another piece
                        signature += (_equal_args(classes),)
                    key = key_of_signature.get(signature, NO_PIECE)
                    if key == NO_PIECE:
                        key = key_of_signature[signature] = len(self.pieces)
                        self.pieces.append(self._piece(enode))
                else:
                    key = NO_PIECE
                if len(live) > 1:
                    alike = seen.setdefault((key, head if key == NO_PIECE else None, *reads), len(sources))
                    if alike < len(sources):
                        if enode < sources[alike]:  # type: ignore[operator]  # keep the oldest
                            sources[alike] = enode
                        continue
                self._add_choice(own, enode, tuple(reads), key)

    def _add_choice(
        self,
        number: int,
        source: int | _FusedMatch | None,
        reads: tuple[int, ...],
        key: int,
        constant_bytes: int = 0,
    ) -> None:
        """Add a choice of a class, which is given by its number."""
        self._members[number].append(len(self._sources))
        self._sources.append(source)
        self._class_of_choice.append(number)
        self._children.append(reads)
        self.keys.append(key)
        self.constant_bytes.append(constant_bytes)
        self.bytes_in_file.append(constant_bytes)
        self.bytes_in_kernel.append(constant_bytes)

    def _add_constant(self, eclass: int) -> None:
        size = self._size(eclass)
        enode = min(self.graph.live_members(eclass))  # any one stands for the class
        self._add_choice(self._class_numbers[eclass], enode, (), NO_PIECE, size)
        self.bytes_in_file[-1] = int(min(size, self._unfolded_bytes(eclass)))

    def _size(self, eclass: int) -> int:
        """Return the bytes of a class's elements."""
        types = self.graph.analyses[eclass].types
        size = self._bytes_of_types.get(types)
        if size is None:
            size = sum(tensor_bytes(kind) for kind in types if isinstance(kind, TensorType))
            self._bytes_of_types[types] = size
        return size

    def _unfolded_bytes(self, eclass: int) -> float:
        """Return the bytes of the constants from which the model itself computes a class, or infinity."""
        seen, waiting, total = {eclass}, [eclass], 0
        while waiting:
            at = waiting.pop()
            if (enode := min(self.graph.live_members(at))) >= self._original_enodes:  # not in the model
                return inf
            if self.graph.heads[enode].op is CONSTANT:
                total += self._size(at)
            reads = {self.graph.find(read) for read in self.graph.args[enode] if read != ABSENT} - seen
            seen |= reads
            waiting += reads
        return total

    def _add_fusions(self, fusions: Sequence[Pattern]) -> None:
        """Add a choice for each match of a fusion pattern, all of whose e-nodes compute at run time."""
        graph, numbers, find = self.graph, self._class_numbers, self.graph.find
        index = MatchIndex()
        index.update(graph, [eclass for eclass in numbers if not graph.analyses[eclass].static])
        for pattern in fusions:
            for match in index.search(graph, pattern, most=MAX_FUSED_MATCHES):
                if self._self_reading.isdisjoint(match) and max(match) < self._enode_limit:
                    classes = tuple([find(term) for term in pattern.bind(graph.original_args, match)])
                    own, reads = numbers[find(match[0])], [numbers[eclass] for eclass in classes]
                    if own not in reads:  # else a cycle
                        source = _FusedMatch(pattern, match)
                        key = self._fused_key(source, classes)
                        self._add_choice(own, source, tuple(dict.fromkeys(reads)), key)

    def _add_packed_copies(self) -> None:
        """Give a large constant that several kinds of kernels read a copy for each: a class that reads it."""
        sizes = zip(self._class_of_choice, self.constant_bytes, strict=True)
        large = {constant for constant, size in sizes if size >= MIN_COPIED_BYTES}
        readers: dict[int, dict[str, list[int]]] = {}  # {constant: {kind of kernel: choices that read it}}
        for choice, reads in enumerate(self._children):
            for read in reads:
                if read in large:
                    key = self.keys[choice]
                    kind = "" if key == NO_PIECE else self._packing(self.pieces[key])
                    readers.setdefault(read, {}).setdefault(kind, []).append(choice)
        for constant, readers_by_kind in readers.items():
            if len(readers_by_kind) == 1:
                continue
            (choice,) = self._members[constant]
            self.bytes_in_kernel[choice] = 0  # its copies have the bytes
            for reading in readers_by_kind.values():
                copy = len(self._members)
                self._members.append([])
                self._add_choice(copy, None, (constant,), NO_PIECE)
                self.bytes_in_kernel[-1] = self.constant_bytes[choice]
                for reader in reading:
                    reads = self._children[reader]
                    self._children[reader] = tuple(copy if read == constant else read for read in reads)

    def _fused_key(self, source: _FusedMatch, classes: tuple[int, ...]) -> int:
        heads = [self.graph.heads[enode] for enode in source.match]
        codes = [self._codes[eclass] for eclass in classes]
        signature = (source.pattern, *heads, *codes, _equal_args(classes))
        key = self._key_of_signature.get(signature)
        if key is None:
            key = self._key_of_signature[signature] = len(self.pieces)
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
            members = [[choice for choice in choices if costs[choice] < inf] for choices in members]
        return Problem(costs, self._children, self._class_of_choice, members, self._roots)

    def _unpriced_problem(self) -> Problem:
        return self.problem([0.0] * len(self.keys))

    def price_choices(self, costs: Sequence[float], seconds_per_byte: float = 0.0) -> list[float]:
        """Return the cost of each choice: that of its key, or the price of the bytes of a constant."""
        rows = zip(self.keys, self.bytes_in_kernel, strict=True)
        return [seconds_per_byte * size if key == NO_PIECE else costs[key] for key, size in rows]

    def stored_bytes(self, selection: Selection) -> int:
        """Return the bytes of constants that the program stores in its file."""
        return sum(self.bytes_in_file[choice] for choice in selection.values())

    def packed_bytes(self, selection: Selection) -> int:
        """Return the bytes of constants that the program's kernels read, a copy for each kind of kernel."""
        return sum(self.bytes_in_kernel[choice] for choice in selection.values())

    def place(self, choice: int) -> Place:
        """Return the e-nodes of a choice, () for a copy of a constant: the same in every extraction."""
        source = self._sources[choice]
        return () if source is None else (source,) if isinstance(source, int) else source.match

    def places(self, selection: Selection) -> tuple[Place, ...]:
        """Return the places of all choices of a program."""
        return tuple(map(self.place, selection.values()))

    def selection_at(self, places: Iterable[Place]) -> dict[int, int]:
        """Return the program whose choices have these places; {} where some of them are not choices here."""
        selection = {number: choices[0] for number, choices in enumerate(self._members) if len(choices) == 1}
        for place in places:
            choice = self._choice_at_place.get(place)
            if choice is not None:
                selection[self._class_of_choice[choice]] = choice
        return keep_needed(self._unpriced_problem(), selection)

    @cached_property
    def _choice_at_place(self) -> dict[Place, int]:
        return {self.place(choice): choice for choice in range(len(self._sources))}

    def program(self, original: Program, selection: Selection) -> Program:
        """Return the program of a selection, with the original's inputs, names and outputs.

        Raises ValueError where the selection is cyclic or incomplete.
        """
        built = self._build_nodes(selection)
        return original.with_outputs([built[root] for root in self._roots])

    def computed_nodes(self, selection: Selection) -> dict[int, frozenset[Node]]:
        """Return for each choice with a cost the nodes of the program that it computes."""
        built = self._build_nodes(selection)
        nodes = {}
        for number, choice in selection.items():
            if self.keys[choice] != NO_PIECE and number in built:
                leaves = [built[child] for child in self._children[choice]]
                nodes[choice] = frozenset(Piece(built[number], tuple(leaves)).inner)
        return nodes

    def _build_nodes(self, selection: Selection) -> dict[int, Node]:
        """Return the node of each class of the problem that the program computes, by the class's number."""
        order = self._unpriced_problem().order(selection)
        if order is None:
            raise ValueError("the choice is cyclic or incomplete")
        graph, find = self.graph, self.graph.find
        sources = [self._sources[selection[number]] for number in order]
        reads_of = list(map(self._terms_read, sources))
        # choose programs of the constants, which the problem holds only as choices without reads
        used = {find(term) for reads in reads_of for term in reads if term != ABSENT}
        used |= {find(source) for source in sources if isinstance(source, int)}
        self._constants.choose([eclass for eclass in used if graph.analyses[eclass].static])
        constants: dict[int, Node] = {}  # by class of the e-graph
        built: dict[int, Node] = {}

        def node_of(eclass: int) -> Node:
            node = built.get(self._class_numbers.get(eclass, -1))
            return self._constants.build(eclass, constants) if node is None else node

        for number, source, reads in zip(order, sources, reads_of, strict=True):
            if isinstance(source, int) and graph.analyses[find(source)].static:
                built[number] = self._constants.build(find(source), constants)
                continue
            args = [None if term == ABSENT else node_of(find(term)) for term in reads]
            if isinstance(source, int):
                built[number] = graph.heads[source].build(args)
            elif source is None:  # copies exist for costs only
                (constant,) = self._children[selection[number]]
                built[number] = built[constant]
            else:
                built[number] = source.pattern.over(graph, source.match, args)  # type: ignore[arg-type]
        return built

    def _terms_read(self, source: int | _FusedMatch | None) -> tuple[int, ...]:
        """Return the e-nodes or classes that a choice reads, ABSENT for a missing one."""
        if source is None:
            return ()
        if isinstance(source, int):
            return self.graph.args[source]
        return source.pattern.bind(self.graph.original_args, source.match)


def _equal_args(classes: Sequence[int]) -> tuple[int, ...]:
    """Return for each argument the place of the first equal one; () where all differ."""
    return tuple([classes.index(c) for c in classes]) if len(set(classes)) < len(classes) else ()
