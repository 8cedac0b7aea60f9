"""Distance-guided search for what an expression can be computed by (EINNET, section 6.1).

Explorative derivation applies every rule to what arithmetic bounds; converging derivation takes each state
to the operators that its expressions are, with expressions that arithmetic does not bound around them.  Those
are explored first that should cost least: a search that is cut has seen those that promise most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from time import monotonic

from tensaurus.algebra.expr import Read, Scope, Tensor
from tensaurus.algebra.index_map import renumbers
from tensaurus.algebra.intern import interned
from tensaurus.algebra.size import product
from tensaurus.algebra.text import show
from tensaurus.algebra.walk import reads
from tensaurus.cost.demand import aliases, bytes_of, number_of, operations, scopes_of
from tensaurus.cost.roofline import ONE_CORE, Roofline
from tensaurus.derive import boundary, merging, substitution, summation
from tensaurus.derive.instantiation import matches
from tensaurus.derive.state import INTENSE, State, intensity
from tensaurus.derive.step import Rule
from tensaurus.graph.expression import expression
from tensaurus.graph.node import Node

__all__ = ["CONVERGING", "EXPLORATIVE", "REACHED", "Derived", "Search", "derived", "initial"]

EXPLORATIVE: tuple[Rule, ...] = (
    summation.split,
    summation.divided,
    summation.reindexed,
    summation.collapsed,
    substitution.divided,
    merging.merged,
)
CONVERGING: tuple[Rule, ...] = (substitution.sheared, boundary.tightened)
DEPTH = 7  # explorative rules applied one after the other, at most
STATES = 2000  # that are explored
DEEPER = 1.5  # times as much an expression counts for each rule before the last: shallow ones come first
ALIKE = 4  # states that one stands for at other sizes, at most
REACHED = 0.5  # of the machine's peaks, by an operator of a runtime


@dataclass(frozen=True)
class Derived:
    """A program that an expression is equal to, and seconds that it should take."""

    state: State
    seconds: float

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of those that parts of it became."""
        return tuple(str(node.op) for _, node in self.state.nodes if node.args)

    @cached_property
    def length(self) -> int:
        """Of its expressions, written: what is said in fewer words compiles to fewer loops."""
        scopes = {scope for _, node in self.state.nodes if node.args for scope in scopes_of(node)}
        return sum(len(show(scope)) for scope in (self.state.scope, *scopes))

    @cached_property
    def trail(self) -> tuple[str, ...]:
        """The likenesses of the states on its path."""
        return tuple(state.likeness for state in self.path[1:])

    @property
    def path(self) -> tuple[State, ...]:
        """The states that lead to it, the first one first."""
        found = [self.state]
        while found[-1].before is not None:
            found.append(found[-1].before)
        return tuple(reversed(found))


@dataclass
class Search:
    """How far to look; after a run `explored` states, those `met` on the way, of which `pruned` were known,
    how many programs it `found`, whether it was `cut`, and whether that was for its deadline: `late`.

    explorative  rules that are applied to every state
    converging   rules that are applied where they bring an expression nearer to operators
    depth     explorative rules one after the other, at most
    states    explored at most
    deadline  of `time.monotonic`
    intense   operations for each element moved, from which on arithmetic bounds an expression
    guided    whether states are explored by what they may cost, else in the order of their discovery
    """

    roofline: Roofline = ONE_CORE
    explorative: Sequence[Rule] = EXPLORATIVE
    converging: Sequence[Rule] = CONVERGING
    depth: int = DEPTH
    states: int = STATES
    deadline: float = inf
    intense: float = INTENSE
    guided: bool = True
    explored: int = field(default=0, init=False)
    met: int = field(default=0, init=False)
    pruned: int = field(default=0, init=False)
    found: int = field(default=0, init=False)
    cut: bool = field(default=False, init=False)
    late: bool = field(default=False, init=False)

    def run(self, scope: Scope, nodes: Iterable[tuple[Tensor, Node]]) -> list[Derived]:
        """The programs found, the fastest first."""
        self.explored = self.met = self.pruned = 0
        first = State(merging.read_through(scope), tuple(nodes))
        numbers, seen, found = count(), {first.key}, dict[tuple[object, ...], Derived]()
        waiting: list[tuple[float, int, int, State]] = [(0.0, 0, next(numbers), first)]
        while waiting and self.explored < self.states and not self._late():
            _, depth, _, state = heappop(waiting)
            self.explored += 1
            for nearer in self._nearing(state):
                if nearer is not state and nearer.key in seen:
                    break
                seen.add(nearer.key)
                for end in self._converged(nearer):
                    if end.key not in found:
                        found[end.key] = Derived(end, self.seconds(end))
            if depth == self.depth:
                continue
            for other in self._neighbours(state):
                if self._late():
                    break
                self.met += 1
                if other.key in seen:
                    self.pruned += 1
                    continue
                seen.add(other.key)
                bound = DEEPER**depth * self.seconds(other) if self.guided else 0.0
                heappush(waiting, (bound, depth + 1, next(numbers), other))
        self.found, self.cut, self.late = len(found), bool(waiting), self._late()
        return sorted(found.values(), key=lambda one: (one.seconds, one.length))

    def followed(
        self, scope: Scope, nodes: Iterable[tuple[Tensor, Node]], trail: Sequence[str]
    ) -> list[Derived]:
        """The programs on such a trail: at other sizes there may be several, or none."""
        states = [State(merging.read_through(scope), tuple(nodes))]
        for likeness in trail:
            found: dict[tuple[object, ...], State] = {}
            for state in states:
                for other in self._successors(state):
                    if self._late():
                        self.late = True
                        return []
                    if other.likeness == likeness:
                        found.setdefault(other.key, other)
            states = sorted(found.values(), key=self.seconds)[:ALIKE]
        ends = [state for state in states if not state.intense(self.intense)]
        return [Derived(state, self.seconds(state)) for state in ends]

    def _successors(self, state: State) -> Iterator[State]:
        """Whatever one rule, explorative or converging, or one operator makes of a state."""
        yield from self._neighbours(state)
        intense = state.intense(self.intense)
        for stage in intense:
            for rule in self.converging:
                yield from (state.stepped(stage, step) for step in rule(stage))
        for stage in intense[:1]:
            made = (*(state.matched(stage, match) for match in matches(stage)), state.generated(stage))
            yield from filter(None, made)

    def _neighbours(self, state: State) -> Iterator[State]:
        for stage in state.intense(self.intense):
            for rule in self.explorative:
                for step in rule(stage):
                    yield state.stepped(stage, step)

    def _nearing(self, state: State) -> Iterator[State]:
        """The state, and those in which fewer iterators of what arithmetic bounds are mismatched."""
        yield state
        while (nearer := self._nearer(state)) is not None:
            yield (state := nearer)

    def _nearer(self, state: State) -> State | None:
        for stage in state.intense(self.intense):
            for rule in self.converging:
                for step in rule(stage):
                    assert isinstance(step.scope.body, Read) and isinstance(step.scope.body.source, Scope)
                    inner = step.scope.body.source
                    if _distance(inner) < _distance(stage):
                        return state.stepped(stage, step)
        return None

    def _converged(self, state: State) -> Iterator[State]:
        """The states in which every stage that arithmetic bounds is an operator."""
        left = state.intense(self.intense)
        if not left:
            yield state
            return
        stage = left[0]
        inner = [read.source for read in reads(stage) if isinstance(read.source, Scope)]
        if any(intensity(source) >= self.intense for source in inner):
            return
        forms = chain((state.matched(stage, match) for match in matches(stage)), (state.generated(stage),))
        for made in forms:
            if self._late():
                return
            if made is not None:
                yield from self._converged(made)

    def _late(self) -> bool:
        return monotonic() >= self.deadline

    def seconds(self, state: State) -> float:
        """At the peaks: of operators, of the expressions that are their operands, and of the state's own."""
        total = 0.0
        seen = set[Node]()
        waiting = [node for _, node in state.nodes]
        while waiting:
            node = waiting.pop()
            if node in seen or not node.args or node.static:
                continue
            seen.add(node)
            waiting += [arg for arg in node.args if arg is not None]
            if aliases(node):
                continue
            moved = sum(bytes_of(kind) for arg in (node, *filter(None, node.args)) for kind in arg.types)
            total += self.roofline.seconds(operations(node), moved) / REACHED
        for stage in state.stages:
            if renumbers(stage):
                continue
            sources = {id(read.source): read.source for read in reads(stage)}.values()
            moved = 4 * sum(number_of(product(s.shape)) for s in (stage, *sources))
            work = intensity(stage) * moved / 4
            total += self.roofline.seconds(work, moved)
        return total


def _distance(stage: Scope) -> tuple[int, int]:
    """How far it is from an operator: the iterators that meet in one dimension; then its elements."""
    return substitution.mixed(stage), number_of(product(stage.shape))


def derived(node: Node, leaves: tuple[Node, ...], search: Search) -> list[Derived]:
    """What the search finds for the expression of a node over these leaves."""
    return search.run(*initial(node, leaves))


def initial(node: Node, leaves: tuple[Node, ...]) -> tuple[Scope, tuple[tuple[Tensor, Node], ...]]:
    """The expression of a node over these leaves, and which tensors they are there."""
    given = {leaf: Tensor(f"x{k}", leaf.tensor.shape, leaf.tensor.dtype) for k, leaf in enumerate(leaves)}
    return interned(expression(node, given)), tuple((x, leaf) for leaf, x in given.items())
