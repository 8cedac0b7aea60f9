"""Distance-guided search for programs that compute an expression (EINNET, section 6.1).

A state (`derivation_state`) is a tuple of expressions that equals the original, with the operators found so
far; its stages are the nested scopes.  Explorative derivation applies every rule to the compute-bound stages
of a state.  Converging derivation then turns these stages into operators; memory-bound expressions remain
around them, as eOperators, for which kernels are generated.  The states that should cost least are explored
first, so that a search that runs out of time has seen the best of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import count, takewhile
from math import inf
from time import monotonic
from typing import NamedTuple

from tensaurus.expr.analysis.reshape_map import is_reshape
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
from tensaurus.finders.derive.derivation_state import MIN_INTENSITY, State, intensity
from tensaurus.finders.derive.match_operators import match_operators
from tensaurus.finders.derive.price_as_operators import is_precomputed, operator_seconds
from tensaurus.finders.derive.rewrite_step import JointRule, Rule
from tensaurus.finders.derive.uniform_constants import inline_numbers, uniform_value
from tensaurus.graph.analysis.program_expression import build_expression
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import topological_order
from tensaurus.runtimes.price.operation_counts import is_alias, number_of, scopes_of
from tensaurus.runtimes.price.roofline import ONE_CORE, Roofline

__all__ = ["CONVERGING", "EXPLORATIVE", "JOINT", "DerivedProgram", "Search", "initial_expressions"]

# the names of the rules' modules and functions are part of a database key: `derivation_cache.cache_version`
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
MAX_DEPTH = 7  # explorative rules applied one after the other
MAX_STATES = 2000  # states that are explored
DEPTH_PENALTY = 1.5  # factor on a state's cost for each rule after the first: shallow states come first
MAX_SIMILAR_STATES = 4  # states that are kept for each hash of a trail: it leaves out sizes, so several fit


@dataclass(frozen=True)
class DerivedProgram:
    """A final state, which is a program equal to the expressions, and the seconds that it should take."""

    state: State
    seconds: float

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators in the program."""
        return tuple(str(node.op) for _, node in self.state.nodes if node.args)

    @cached_property
    def text_length(self) -> int:
        """Length of all expressions as text: of two equally fast programs the shorter one has fewer loops."""
        scopes = {scope for _, node in self.state.nodes if node.args for scope in scopes_of(node)}
        return sum(len(show(scope)) for scope in (*self.state.roots, *scopes))

    @cached_property
    def trail(self) -> tuple[str, ...]:
        """The similarity of each state on the path: by these the program is found again at other sizes."""
        return tuple(state.similarity for state in self.path[1:])

    @property
    def path(self) -> tuple[State, ...]:
        """The states that lead to the program, the first one first."""
        states = [self.state]
        while states[-1].previous is not None:
            states.append(states[-1].previous)
        return tuple(reversed(states))


class _WaitingState(NamedTuple):
    """A state to explore: the least priority first, of equal ones the one that was discovered first.

    depth   explorative rules that led to the state
    number  counts the states as they are discovered
    """

    priority: float
    depth: int
    number: int
    state: State


@dataclass
class Search:
    """The limits of a search, and its counts after a run.

    roofline        the machine's peaks
    explorative     rules that are applied to every state
    joint           rules that are applied to several expressions of a state at once
    converging      rules that are applied where they bring an expression nearer to operators
    max_depth       explorative rules one after the other
    max_states      states explored
    deadline        of `time.monotonic`
    min_intensity   operations for each element moved from which on a stage is compute-bound
    is_guided       whether states are explored in the order of their cost, else of their discovery
    prunes_known    whether a state that is known is not explored again
    allows_kernels  whether compute-bound stages may be eOperators; else they must be standard operators
    weights         nodes that are constants of the model: nodes that depend on them alone cost nothing
    explored        states that were explored
    produced        states that rules produced, of which `pruned` were known
    found           programs that were found
    is_cut          whether states remain to be explored
    is_late         whether states remain because the deadline has passed
    _waiting        a heap of the states that are not explored yet
    _starts         start states that are not waiting yet
    _seen           keys of states that are waiting, were explored, or were matched to operators
    _programs       the programs found, by the keys of their states
    """

    roofline: Roofline = ONE_CORE
    explorative: Sequence[Rule] = EXPLORATIVE
    joint: Sequence[JointRule] = JOINT
    converging: Sequence[Rule] = CONVERGING
    max_depth: int = MAX_DEPTH
    max_states: int = MAX_STATES
    deadline: float = inf
    min_intensity: float = MIN_INTENSITY
    is_guided: bool = True
    prunes_known: bool = True
    allows_kernels: bool = True
    weights: frozenset[Node] = frozenset()
    explored: int = field(default=0, init=False)
    produced: int = field(default=0, init=False)
    pruned: int = field(default=0, init=False)
    found: int = field(default=0, init=False)
    is_cut: bool = field(default=False, init=False)
    is_late: bool = field(default=False, init=False)
    _waiting: list[_WaitingState] = field(default_factory=list, init=False, repr=False)
    _starts: Iterator[State] = field(default_factory=lambda: iter(()), init=False, repr=False)
    _numbers: Iterator[int] = field(default_factory=count, init=False, repr=False)
    _seen: set[tuple[object, ...]] = field(default_factory=set, init=False, repr=False)
    _programs: dict[tuple[object, ...], DerivedProgram] = field(default_factory=dict, init=False, repr=False)

    def run(
        self, roots: Sequence[Scope], nodes: Iterable[tuple[Tensor, Node]],
        starts: Iterable[State] | None = None
    ) -> list[DerivedProgram]:
        """Search from the expressions, or from `starts` derived from them; the fastest program is first."""
        self.explored = self.produced = self.pruned = 0
        self._waiting, self._numbers, self._seen, self._programs = [], count(), set(), {}
        first = State(tuple(map(merge_traversals.read_through, roots)), tuple(nodes))
        self._starts = iter((first,) if starts is None else starts)
        return self.resume()

    def resume(self) -> list[DerivedProgram]:
        """Go on after a run that was cut, up to `max_states` and `deadline` as they are now.

        Return all programs, those of the earlier run included.
        """
        waiting, has_more_starts = self._waiting, True
        while has_more_starts and not self._is_past_deadline():
            state = next(self._starts, None)
            has_more_starts = state is not None
            if state is not None and state.key not in self._seen:
                self._enqueue(state, 0)
        while waiting and self.explored < self.max_states and not self._is_past_deadline():
            self._explore(heappop(waiting))
        self.found, self.is_cut = len(self._programs), has_more_starts or bool(waiting)
        self.is_late = self.is_cut and self._is_past_deadline()
        return sorted(self._programs.values(), key=lambda program: (program.seconds, program.text_length))

    def _enqueue(self, state: State, depth: int) -> None:
        """Queue a state that is `depth` explorative rules away from the start."""
        self._seen.add(state.key)
        # start states have depth 0 and come before all others
        priority = DEPTH_PENALTY ** (depth - 1) * self.seconds(state) if self.is_guided and depth else 0.0
        heappush(self._waiting, _WaitingState(priority, depth, next(self._numbers), state))

    def _explore(self, waiting: _WaitingState) -> None:
        """Collect the programs of a state and queue its neighbours; put it back if the deadline passes."""
        state, depth = waiting.state, waiting.depth
        keys, neighbours = list[tuple[object, ...]](), list[State]()
        # converging rules lead through ever nearer states; each may match operators in all its stages
        for nearer in self._approach_operators(state):
            if nearer is not state and nearer.key in self._seen and self.prunes_known:
                break  # what follows from a known state is found from there
            keys.append(nearer.key)
            for final in self._match_all_stages(nearer):
                if final.key not in self._programs:
                    self._programs[final.key] = DerivedProgram(final, self.seconds(final))
        # neighbours follow from the state itself, not from the states nearer to operators
        if depth < self.max_depth:
            neighbours += takewhile(lambda _: not self._is_past_deadline(), self._neighbours(state))
        if self._is_past_deadline():
            heappush(self._waiting, waiting)
            return
        self.explored += 1
        self._seen.update(keys)  # not before: a state that is put back must not find its own states known
        for neighbour in neighbours:
            self.produced += 1
            is_known = neighbour.key in self._seen
            self.pruned += is_known
            if not is_known or not self.prunes_known:
                self._enqueue(neighbour, depth + 1)

    def follow_trail(
        self, roots: Sequence[Scope], nodes: Iterable[tuple[Tensor, Node]], trail: Sequence[str]
    ) -> list[DerivedProgram]:
        """Return the programs, one or several or none, at the end of a trail; past the deadline none."""
        states = [State(tuple(map(merge_traversals.read_through, roots)), tuple(nodes))]
        for similarity in trail:
            found: dict[tuple[object, ...], State] = {}
            for state in states:
                for other in self._successors(state):
                    if self._is_past_deadline():
                        self.is_late = True
                        return []
                    if other.similarity == similarity:
                        found.setdefault(other.key, other)
            states = sorted(found.values(), key=self.seconds)[:MAX_SIMILAR_STATES]
        final = [state for state in states if not state.compute_bound_stages(self.min_intensity)]
        return [DerivedProgram(state, self.seconds(state)) for state in final]

    def _successors(self, state: State) -> Iterator[State]:
        """Yield every state that one rule, explorative or converging, or one operator leads to."""
        yield from self._neighbours(state)
        stages = state.compute_bound_stages(self.min_intensity)
        for stage in stages:
            for rule in self.converging:
                yield from (state.after_step(stage, step) for step in rule(stage))
        for stage in stages[:1]:  # operators are matched from the inside out, as in `_match_all_stages`
            yield from filter(None, self._match_stage(state, stage))

    def _neighbours(self, state: State) -> Iterator[State]:
        """Yield every state that one explorative or joint rule leads to."""
        for stage in state.compute_bound_stages(self.min_intensity):
            for rule in self.explorative:
                for step in rule(stage):
                    yield state.after_step(stage, step)
        for joint_rule in self.joint:
            for joint_step in joint_rule(state.compute_bound_stages(self.min_intensity)):
                yield state.after_joint_step(joint_step)

    def _approach_operators(self, state: State) -> Iterator[State]:
        """Yield the state, then states whose compute-bound stages are nearer and nearer to operators."""
        yield state
        while (nearer := self._nearer_state(state)) is not None:
            yield (state := nearer)

    def _nearer_state(self, state: State) -> State | None:
        """Return the first state in which a converging rule brings a stage nearer to an operator, or None."""
        for stage in state.compute_bound_stages(self.min_intensity):
            for rule in self.converging:
                for step in rule(stage):
                    assert isinstance(step.scope.body, Read) and isinstance(step.scope.body.source, Scope)
                    inner = step.scope.body.source
                    if _distance(inner) < _distance(stage):
                        return state.after_step(stage, step)
        return None

    def _match_all_stages(self, state: State) -> Iterator[State]:
        """Yield the states in which every compute-bound stage has become an operator."""
        stages = state.compute_bound_stages(self.min_intensity)
        if not stages:
            yield state
            return
        inner = [read.source for read in reads(stages[0]) if isinstance(read.source, Scope)]
        if any(intensity(source) >= self.min_intensity for source in inner):
            return
        for matched in self._match_stage(state, stages[0]):
            if self._is_past_deadline():
                return
            if matched is not None:
                yield from self._match_all_stages(matched)

    def _match_stage(self, state: State, stage: Scope) -> Iterator[State | None]:
        """Yield the state with the stage as each matching operator and, where allowed, as an eOperator.

        None stands for a state that cannot be typed.
        """
        yield from (state.with_operator(stage, match) for match in match_operators(stage))
        if self.allows_kernels:
            yield state.with_eop(stage)
            yield state.with_reordered_eop(stage)

    def _is_past_deadline(self) -> bool:
        return monotonic() >= self.deadline

    def seconds(self, state: State) -> float:
        """Return the seconds of the state's operators and stages by the roofline model."""
        # operators, with those that only their operands need
        total = 0.0
        seen = set[Node]()
        waiting = [node for _, node in state.nodes]
        while waiting:
            node = waiting.pop()
            if node in seen or not node.args or is_precomputed(node, self.weights):
                continue
            seen.add(node)
            waiting += [arg for arg in node.args if arg is not None]
            if not is_alias(node):
                total += operator_seconds(node, self.roofline)
        # stages that are expressions still: the roofline of their own arithmetic and traffic
        weights = {x for x, node in state.nodes if is_precomputed(node, self.weights)}
        for stage in state.stages:
            if is_reshape(stage) or weights.issuperset(tensors(stage)):
                continue
            sources = {id(read.source): read.source for read in reads(stage)}.values()
            moved = 4 * sum(number_of(product(s.shape)) for s in (stage, *sources))  # 4 bytes an element
            work = intensity(stage) * moved / 4
            total += self.roofline.seconds(work, moved)
        return total


def _distance(stage: Scope) -> tuple[int, int]:
    """Return how far a stage is from an operator: how many indices mix traversal iterators, then its size."""
    return substitute_variables.count_mixed_dimensions(stage), number_of(product(stage.shape))


def initial_expressions(
    nodes: Sequence[Node], leaves: tuple[Node, ...], weights: Container[Node] = ()
) -> tuple[tuple[Scope, ...], tuple[tuple[Tensor, Node], ...]]:
    """Return the nodes' expressions over tensors, and a (tensor, leaf) pair for each leaf.

    The tensors are named x0, x1, ..., or w0, w1, ... for leaves in `weights`.  Constants that are no leaves
    must have one number as all their elements, which takes their place.
    """
    tensor_of = {
        leaf: Tensor(f"{'w' if leaf in weights else 'x'}{k}", leaf.tensor.shape, leaf.tensor.dtype)
        for k, leaf in enumerate(leaves)
    }
    inner = (node for node in topological_order(nodes) if node not in tensor_of)
    numbers = {node: number for node in inner if (number := uniform_value(node)) is not None}
    constants = {x: Tensor(f"n{k}", x.tensor.shape, x.tensor.dtype) for k, x in enumerate(numbers)}
    values = {constants[x]: number for x, number in numbers.items()}
    expressions = (build_expression(node, {**tensor_of, **constants}) for node in nodes)
    roots = tuple(intern_scope(inline_numbers(scope, values)) for scope in expressions)
    # a constant that is read beyond its edges, where it is 0, is still a tensor
    remaining = {x for root in roots for x in tensors(root)}
    tensor_of |= {node: x for node, x in constants.items() if x in remaining}
    return roots, tuple((x, leaf) for leaf, x in tensor_of.items())
