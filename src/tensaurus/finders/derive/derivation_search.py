"""Distance-guided search for what an expression can be computed by (EINNET, section 6.1).

Explorative derivation applies every rule to what arithmetic bounds; converging derivation takes each state
to the operators that its expressions are, with expressions that arithmetic does not bound around them.  Those
are explored first that should cost least: a search that is cut has seen those that promise most.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import count, takewhile
from math import inf
from time import monotonic

from tensaurus.expr.analysis.index_map import is_reshape
from tensaurus.expr.ir.expression_text import show
from tensaurus.expr.ir.scope import Read, Scope, Tensor
from tensaurus.expr.ir.walk import reads, tensors
from tensaurus.expr.normal.intern import intern_scope
from tensaurus.expr.sizes.size import product
from tensaurus.finders.derive import (
    merge_expressions,
    merge_traversals,
    split_expressions,
    substitute_variables,
    summation_rules,
    tighten_boundary,
)
from tensaurus.finders.derive.derivation_state import INTENSE, State, intensity
from tensaurus.finders.derive.instantiate_operator import matches
from tensaurus.finders.derive.price_as_operators import REACHED, ahead
from tensaurus.finders.derive.rewrite_step import JointRule, Rule
from tensaurus.finders.derive.uniform_constants import alike, filled
from tensaurus.graph.analysis.program_expression import build_expression
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.runtimes.price.operation_counts import bytes_of, is_alias, number_of, operations, scopes_of
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["CONVERGING", "EXPLORATIVE", "JOINT", "Derived", "Search", "initial"]

EXPLORATIVE: tuple[Rule, ...] = (
    summation_rules.split,
    summation_rules.divided,
    summation_rules.reindexed,
    summation_rules.collapsed,
    substitute_variables.divided,
    merge_traversals.merged,
    split_expressions.split,
)
JOINT: tuple[JointRule, ...] = (merge_expressions.joined,)
CONVERGING: tuple[Rule, ...] = (substitute_variables.sheared, tighten_boundary.tightened)
DEPTH = 7  # explorative rules applied one after the other, at most
STATES = 2000  # that are explored
DEEPER = 1.5  # times as much an expression counts for each rule before the last: shallow ones come first
ALIKE = 4  # states that one stands for at other sizes, at most


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
        return sum(len(show(scope)) for scope in (*self.state.roots, *scopes))

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
    joint        those that are applied to what several expressions of a state share
    converging   rules that are applied where they bring an expression nearer to operators
    depth     explorative rules one after the other, at most
    states    explored at most
    deadline  of `time.monotonic`
    intense   operations for each element moved, from which on arithmetic bounds an expression
    guided    whether states are explored by what they may cost, else in the order of their discovery
    pruning   whether a state that was met before is left out
    kernels   whether what arithmetic bounds may be left to kernels; else it has to be operators
    weights   nodes that are constant where the expressions stand: what is computed of them alone is free
    """

    roofline: Roofline = ONE_CORE
    explorative: Sequence[Rule] = EXPLORATIVE
    joint: Sequence[JointRule] = JOINT
    converging: Sequence[Rule] = CONVERGING
    depth: int = DEPTH
    states: int = STATES
    deadline: float = inf
    intense: float = INTENSE
    guided: bool = True
    pruning: bool = True
    kernels: bool = True
    weights: frozenset[Node] = frozenset()
    explored: int = field(default=0, init=False)
    met: int = field(default=0, init=False)
    pruned: int = field(default=0, init=False)
    found: int = field(default=0, init=False)
    cut: bool = field(default=False, init=False)
    late: bool = field(default=False, init=False)
    _waiting: list[tuple[float, int, int, State]] = field(default_factory=list, init=False, repr=False)
    _starts: Iterator[State] = field(default_factory=lambda: iter(()), init=False, repr=False)
    _numbers: Iterator[int] = field(default_factory=count, init=False, repr=False)
    _seen: set[tuple[object, ...]] = field(default_factory=set, init=False, repr=False)
    _ends: dict[tuple[object, ...], Derived] = field(default_factory=dict, init=False, repr=False)

    def run(
        self,
        roots: Sequence[Scope],
        nodes: Iterable[tuple[Tensor, Node]],
        starts: Iterable[State] | None = None,
    ) -> list[Derived]:
        """The programs found, the fastest first; `starts` are states that follow from these expressions, if
        the search shall begin there, as many as there is time for."""
        self.explored = self.met = self.pruned = 0
        self._waiting, self._numbers, self._seen, self._ends = [], count(), set(), {}
        own = State(tuple(map(merge_traversals.read_through, roots)), tuple(nodes))
        self._starts = iter((own,) if starts is None else starts)
        return self.resumed()

    def resumed(self) -> list[Derived]:
        """The same after what `states` and `deadline` leave to be explored since the run was cut."""
        waiting, rest = self._waiting, True
        while not self._late() and (rest := (state := next(self._starts, None)) is not None):
            if state is not None and state.key not in self._seen:
                self._wait(state, 0)
        while waiting and self.explored < self.states and not self._late():
            self._explore(*heappop(waiting))
        self.found, self.cut = len(self._ends), rest or bool(waiting)
        self.late = self.cut and self._late()
        return sorted(self._ends.values(), key=lambda one: (one.seconds, one.length))

    def _wait(self, state: State, depth: int) -> None:
        """The state is to be explored, by so many rules."""
        self._seen.add(state.key)
        bound = DEEPER ** (depth - 1) * self.seconds(state) if self.guided and depth else 0.0
        heappush(self._waiting, (bound, depth, next(self._numbers), state))

    def _explore(self, bound: float, depth: int, number: int, state: State) -> None:
        """What the state is, and what rules make of it; where time ends, it waits as before."""
        keys, others = list[tuple[object, ...]](), list[State]()
        for nearer in self._nearing(state):
            if nearer is not state and nearer.key in self._seen and self.pruning:
                break
            keys.append(nearer.key)
            for end in self._converged(nearer):
                if end.key not in self._ends:
                    self._ends[end.key] = Derived(end, self.seconds(end))
        if depth < self.depth:
            others += takewhile(lambda _: not self._late(), self._neighbours(state))
        if self._late():
            heappush(self._waiting, (bound, depth, number, state))
            return
        self.explored += 1
        self._seen.update(keys)
        for other in others:
            self.met += 1
            known = other.key in self._seen
            self.pruned += known
            if not known or not self.pruning:
                self._wait(other, depth + 1)

    def followed(
        self, roots: Sequence[Scope], nodes: Iterable[tuple[Tensor, Node]], trail: Sequence[str]
    ) -> list[Derived]:
        """The programs on such a trail: at other sizes there may be several, or none."""
        states = [State(tuple(map(merge_traversals.read_through, roots)), tuple(nodes))]
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
            yield from filter(None, self._instantiated(state, stage))

    def _neighbours(self, state: State) -> Iterator[State]:
        for stage in state.intense(self.intense):
            for rule in self.explorative:
                for step in rule(stage):
                    yield state.stepped(stage, step)
        for joint in self.joint:
            for together in joint(state.intense(self.intense)):
                yield state.joined(together)

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
        for made in self._instantiated(state, stage):
            if self._late():
                return
            if made is not None:
                yield from self._converged(made)

    def _instantiated(self, state: State, stage: Scope) -> Iterator[State | None]:
        """The stage as each operator that it matches and, where kernels may run it, as an eOperator, of its
        operands as they are and in another order."""
        yield from (state.matched(stage, match) for match in matches(stage))
        if self.kernels:
            yield state.generated(stage)
            yield state.reordered(stage)

    def _late(self) -> bool:
        return monotonic() >= self.deadline

    def seconds(self, state: State) -> float:
        """At the peaks: of operators, of the expressions that are their operands, and of the state's own."""
        total = 0.0
        seen = set[Node]()
        waiting = [node for _, node in state.nodes]
        while waiting:
            node = waiting.pop()
            if node in seen or not node.args or ahead(node, self.weights):
                continue
            seen.add(node)
            waiting += [arg for arg in node.args if arg is not None]
            if is_alias(node):
                continue
            moved = sum(bytes_of(kind) for arg in (node, *filter(None, node.args)) for kind in arg.types)
            total += self.roofline.seconds(operations(node), moved) / REACHED
        weights = {x for x, node in state.nodes if ahead(node, self.weights)}
        for stage in state.stages:
            if is_reshape(stage) or weights.issuperset(tensors(stage)):
                continue
            sources = {id(read.source): read.source for read in reads(stage)}.values()
            moved = 4 * sum(number_of(product(s.shape)) for s in (stage, *sources))
            work = intensity(stage) * moved / 4
            total += self.roofline.seconds(work, moved)
        return total


def _distance(stage: Scope) -> tuple[int, int]:
    """How far it is from an operator: the iterators that meet in one dimension; then its elements."""
    return substitute_variables.mixed(stage), number_of(product(stage.shape))


def initial(
    nodes: Sequence[Node], leaves: tuple[Node, ...], weights: Container[Node] = ()
) -> tuple[tuple[Scope, ...], tuple[tuple[Tensor, Node], ...]]:
    """The expressions of nodes over these leaves, and which tensors they are there: x0, x1, ..., or w0, w1,
    ... where they are weights.  Constants that are no leaves are one number each."""
    given = {
        leaf: Tensor(f"{'w' if leaf in weights else 'x'}{k}", leaf.tensor.shape, leaf.tensor.dtype)
        for k, leaf in enumerate(leaves)
    }
    inner = (node for node in topological_order(nodes) if node not in given)
    numbers = {node: number for node in inner if (number := alike(node)) is not None}
    names = {x: Tensor(f"n{k}", x.tensor.shape, x.tensor.dtype) for k, x in enumerate(numbers)}
    values = {names[x]: number for x, number in numbers.items()}
    roots = tuple(intern_scope(filled(build_expression(node, {**given, **names}), values)) for node in nodes)
    # where zeros lie beyond an edge of theirs, they stay tensors
    left = {x for root in roots for x in tensors(root)}
    given |= {node: x for node, x in names.items() if x in left}
    return roots, tuple((x, leaf) for leaf, x in given.items())
