"""A result found at fixed sizes, made again for all sizes that the model leaves open.

`--shape` fixes sizes so that operators can be measured; most rewrites need them fixed as little as the model
does.  The rewrites that led to a program are applied once more, to the model with its sizes open: each rule
says anew what it makes, attributes computed from sizes included, and its conditions are asked of sizes that
are symbols.  That the program then found equals the model follows by congruence, as it does at fixed sizes.

    Reshape(Reshape(x, (6, 4)), (24,))  =>  Reshape(x, (24,))          at x[2, 3, 4]
    Reshape(Reshape(x, (3*n, 4)), (12*n,))  =>  Reshape(x, (12*n,))    at x[n, 3, 4]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core.egraph_proof import follows
from tensaurus.expr.sizes.size import Symbol
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, replace_args
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.onnx.graph_importer import symbol_of
from tensaurus.graph.onnx.onnx_frame import stated_sizes
from tensaurus.ops import TensorType, Untypable
from tensaurus.rules.language.equation import Equation, instantiate_rule
from tensaurus.rules.language.evidence import Bounded
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.nested_calls import nested_equation
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.prove.subnormal_constants import flushed_constants, refute_flush
from tensaurus.system.errors import TensaurusError

__all__ = ["NotGeneral", "fixed_sizes", "opened", "other_sizes"]

Shapes = dict[str, tuple[int, ...]]


class NotGeneral(TensaurusError):
    """A rewrite is not shown for sizes that are open."""


def fixed_sizes(model: ModelProto, program: Program) -> str:
    """The inputs whose sizes the program fixes and the model leaves open: 'x=1,3,?,?'; empty where none."""
    stated = {value.name: stated_sizes(value.type) for value in model.graph.input}
    fixed = list[str]()
    for node in program.inputs:
        name, kind = node.attribute("name"), node.types[0]
        if isinstance(kind, TensorType):
            sizes = stated[name] or [None] * kind.rank
            if any(old is None and isinstance(new, int) for old, new in zip(sizes, kind.shape, strict=True)):
                shape = ",".join(str(size) if isinstance(size, int) else "?" for size in kind.shape)
                fixed.append(f"{name}={shape}")
    return " ".join(fixed)


def opened(candidate: Candidate, general: Program, rules: Sequence[Rule]) -> Program:
    """The candidate's program for all sizes of `general`, which is the model with its sizes open.

    Raises NotGeneral, with the first rewrite that does not hold for all of them.
    """
    return _Opening.of(candidate.chain[0].program, general, rules).program(candidate)


@dataclass
class _Opening:
    """What nodes at fixed sizes are with their sizes open."""

    general: Program
    rules: Mapping[str, Rule]
    known: dict[Node, Node] = field(default_factory=dict)
    twins: dict[object, list[Node]] = field(default_factory=dict)  # by what their likes at fixed sizes are

    @classmethod
    def of(cls, fixed: Program, general: Program, rules: Sequence[Rule]) -> _Opening:
        """Nodes of one name are one value; that they are told apart wrongly is found by congruence."""
        made = cls(general, {rule.name: rule for rule in rules})
        named = {name: node for node, name in general.names.items()}
        made.known.update(zip(fixed.inputs, general.inputs, strict=True))
        for node, name in fixed.names.items():
            if (other := named.get(name)) is not None and other.op in (node.op, OPAQUE):
                made.known.setdefault(node, other)
                owner, its = (n.args[0] if n.op is ITEM else None for n in (node, other))
                if owner is not None and its is not None:
                    made.known.setdefault(owner, its)
        for node in fixed.nodes:
            if (other := made.known.get(node)) is not None and other.op is node.op:
                made.twins.setdefault(_kind(node), []).append(other)
        return made

    def program(self, candidate: Candidate) -> Program:
        """The candidate's.  Raises NotGeneral."""
        waiting, steps = list(dict.fromkeys(candidate.applied)), list[Equation]()
        while waiting:
            left = list[Equation]()
            for equation in waiting:  # one may be of what another makes
                if (step := self.step(equation)) is None:
                    left.append(equation)
                else:
                    steps.append(step)
            if len(left) == len(waiting):
                raise NotGeneral(f"the rewrite {left[0].name} is proved only for the given sizes")
            waiting = left
        try:
            roots = [self.node(root) for root in candidate.program.roots]
        except Untypable as error:
            raise NotGeneral(f"it depends on the given sizes: {error}") from error
        pairs = list(zip(self.general.roots, roots, strict=True))
        if any(a.types != b.types for a, b in pairs) or not follows(pairs, steps):
            raise NotGeneral("its rewrites do not prove it for all sizes")
        names = {new: name for node, name in candidate.program.names.items() if (new := self.known.get(node))}
        program = self.general.with_outputs(roots)
        return Program(program.inputs, program.outputs, (), {**names, **program.names}, program.frame)

    def node(self, node: Node) -> Node:
        """The node with its sizes open.  Raises Untypable where something in it is fixed."""
        for part in () if node in self.known else topological_order([node], self.known):
            args = tuple(arg and self.known[arg] for arg in part.args)
            self.known[part] = part if part.op in (CONSTANT, INPUT) else self._again(part, args)
        return self.known[node]

    def _again(self, node: Node, args: tuple[Node | None, ...]) -> Node:
        """The node on other arguments.

        Where there is one of this kind on arguments of these types, in the model or made by a rule, that one
        tells what its attributes are with sizes open, and of an opaque operator the types.
        """
        types = [arg and arg.types for arg in args]
        for twin in self.twins.get(_kind(node), ()):
            if [arg and arg.types for arg in twin.args] == types:
                return replace_args(twin, args)
        if node.op is OPAQUE:
            raise Untypable("the output types of an opaque operator depend on the sizes")
        return replace_args(node, args)

    def step(self, equation: Equation) -> Equation | None:
        """The equation with sizes open; None where that is not shown, or not yet."""
        before = dict(self.known)
        try:
            left = tuple(map(self.node, equation.left))
            rule = self.rules.get(equation.name)
            if rule is not None:
                made = self._instance(rule, equation, left)
            elif isinstance(equation.evidence_source, Bounded):
                made = self._bounded(equation, left)
            else:
                made = self._shown(equation, left)
        except (Untypable, ValueError, NotImplementedError):
            made = None
        if made is None:
            self.known = before  # what was made of nodes that a later step tells about is forgotten
        return made

    def _instance(self, rule: Rule, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """What the rule makes of the left side."""
        matcher = Matcher(rule)
        for binding in matcher.bindings(left):
            right = matcher.apply(left, binding)
            if right is not None:
                found = dict(self.known)
                if all(_align(a, b, found) for a, b in zip(equation.right, right, strict=True)):
                    for node in [node for node in found if node not in self.known]:
                        self.twins.setdefault(_kind(node), []).append(found[node])
                    self.known = found
                    return instantiate_rule(rule, binding, left, right)
        return None

    def _bounded(self, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Zeros for subnormal constants, where the bound of what they move holds for all sizes.

        Constants are the same nodes whatever the sizes are, so they are replaced in the model itself: what is
        typed at fixed sizes may be passed through where sizes are open.
        """
        before, after = (
            Program(equation.leaves, tuple((str(k), root) for k, root in enumerate(roots)))
            for roots in (equation.left, equation.right)
        )
        zeroed = flushed_constants(before, after)

        def rebuilt(program: Program) -> dict[Node, Node]:
            became = dict[Node, Node]()
            program.rebuild(lambda node, args: zeroed.get(node) or replace_args(node, args), became)
            return became

        there = rebuilt(before)
        if tuple(there[root] for root in equation.left) == equation.right:
            here = rebuilt(self.general)
            for node, new in there.items():
                if (known := self.known.get(node)) in here:
                    self.known[new] = here[known]
        right = tuple(map(self.node, equation.right))
        made = replace(equation, left=left, right=right, leaves=self.general.inputs)
        return made if refute_flush(made) is None else None

    def _shown(self, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Both sides of what is no rule, where their canonical forms are one for all sizes."""
        right = tuple(map(self.node, equation.right))
        leaves = tuple(map(self.node, equation.leaves))
        if len(left) != 1 or [n.types for n in left] != [n.types for n in right]:
            return None
        made = nested_equation(equation.name, left[0], right[0], leaves)
        return made if made.evidence.is_exact and str(made.evidence).startswith("proved") else None


def _kind(node: Node) -> object:
    """What a node is, whatever it reads of these types."""
    return str(node.op), node.attrs, tuple(arg and arg.types for arg in node.args)


def _align(fixed: Node | None, open_: Node | None, known: dict[Node, Node]) -> bool:
    """Record in `known`, for each node of the fixed-size tree, the node at its place in the open-size tree.

    Returns False where the two trees have different operators.
    """
    waiting = [(fixed, open_, False)]
    while waiting:
        one, other, has_args = waiting.pop()  # the last boolean: whether the arguments are entered
        if one is None or other is None:
            if one is not other:
                return False
        elif has_args:
            known[one] = other
        elif one not in known:
            if one.op is not other.op or len(one.args) != len(other.args):
                return False
            waiting.append((one, other, True))
            waiting += [(a, b, False) for a, b in zip(one.args[::-1], other.args[::-1], strict=True)]
    return True


def other_sizes(general: Program, sizes: Mapping[Symbol, int]) -> Iterator[Shapes]:
    """Shapes of all inputs at other sizes than those given of the symbols, the likeliest to be valid first.

    Halves of even sizes and a quarter more are multiples of what most models ask for.
    """
    plans: tuple[Callable[[int], int], ...] = (
        lambda n: n // 2 if n % 2 == 0 else n + 1,
        lambda n: n + n // 4 if n % 4 == 0 else n + 1,
        lambda n: n + 1,
        lambda n: 3 if n == 1 else n,
    )
    for plan in plans:
        made = {symbol: plan(size) for symbol, size in sizes.items()}
        shapes = Shapes()
        for node in general.inputs:
            kind = node.types[0]
            if isinstance(kind, TensorType):
                shape = [n if isinstance(n, int) else made.get(symbol_of(n)) for n in kind.shape]  # type: ignore[arg-type]
                if None in shape:
                    return
                shapes[node.attribute("name")] = tuple(n for n in shape if n is not None)
        if made != sizes:
            yield shapes
