"""Repeats the rewrites of a result that was found at fixed sizes for all sizes that the model leaves open.

`--shape` fixes sizes so that operators can be measured, and a user wants a result that still runs at all
sizes; few rewrites depend on the sizes.  The rewrites that led to the result are applied again to the model
with its sizes open: each rule computes its right side and the attributes in it anew, and its conditions are
decided for sizes that are symbols.  Congruence then proves the new program equal to the model.

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
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation, instantiate_rule
from tensaurus.rules.language.evidence import Bounded
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.nested_calls import nested_equation
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.prove.subnormal_constants import flushed_constants, refute_flush
from tensaurus.system.errors import TensaurusError

__all__ = ["NotGeneral", "format_fixed_sizes", "open_all_sizes", "propose_other_sizes"]

Shapes = dict[str, tuple[int, ...]]


class NotGeneral(TensaurusError):
    """A rewrite could not be proved for open sizes."""


def format_fixed_sizes(model: ModelProto, program: Program) -> str:
    """Return the inputs whose sizes the program fixes and the model leaves open, as 'x=1,3,?,?'."""
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


def open_all_sizes(candidate: Candidate, general: Program, rules: Sequence[Rule]) -> Program:
    """Return the candidate's program for all sizes of `general`, the model with its sizes open.

    Raises NotGeneral with the first rewrite that is not proved for all of them.
    """
    return _Opening.of(candidate.chain[0].program, general, rules).program(candidate)


@dataclass
class _Opening:
    """Maps nodes at fixed sizes to nodes with open sizes.

    known  node at fixed sizes -> the same value with open sizes
    twins  head of a node at fixed sizes (`_head_key`) -> nodes with open sizes that such nodes became.
           For Reshape(y, (24,)) at y[6, 4] that is Reshape(x, (12*n,)) at x[3*n, 4]: it tells the attributes
           of further nodes of this head
    """

    general: Program
    rules: Mapping[str, Rule]
    known: dict[Node, Node] = field(default_factory=dict)
    twins: dict[object, list[Node]] = field(default_factory=dict)

    @classmethod
    def of(cls, fixed: Program, general: Program, rules: Sequence[Rule]) -> _Opening:
        """Begin with the inputs and with nodes of equal names in both programs.

        A pair that is wrong does no harm: congruence does not prove the result then.
        """
        made = cls(general, {rule.name: rule for rule in rules})
        named = {name: node for node, name in general.names.items()}
        made.known.update(zip(fixed.inputs, general.inputs, strict=True))
        for node, name in fixed.names.items():
            if (other := named.get(name)) is not None and other.op in (node.op, OPAQUE):
                made.known.setdefault(node, other)
                # where both are one output of a call, the calls correspond, too
                owner, other_owner = (n.args[0] if n.op is ITEM else None for n in (node, other))
                if owner is not None and other_owner is not None:
                    made.known.setdefault(owner, other_owner)
        for node in fixed.nodes:
            if (other := made.known.get(node)) is not None and other.op is node.op:
                made.twins.setdefault(_head_key(node), []).append(other)
        return made

    def program(self, candidate: Candidate) -> Program:
        """Return the candidate's program with open sizes.  Raises NotGeneral."""
        # 1. open the equations, as many as can be, until none is left or none more can be opened
        waiting, steps = list(dict.fromkeys(candidate.applied)), list[Equation]()
        while waiting:
            failed = list[Equation]()
            for equation in waiting:  # an equation may rewrite nodes that a later one makes: then try again
                if (step := self.open_equation(equation)) is None:
                    failed.append(equation)
                else:
                    steps.append(step)
            if len(failed) == len(waiting):
                # what reads a kernel's output fails, too: the kernel is the reason
                if any(node.op is eop for e in failed for node in topological_order(e.right)):
                    raise NotGeneral("generated kernels compute only the given sizes")
                raise NotGeneral(f"the rewrite {failed[0].name} is proved only for the given sizes")
            waiting = failed
        # 2. open the program, which must follow from the opened equations
        try:
            roots = [self.open_node(root) for root in candidate.program.roots]
        except Untypable as error:
            raise NotGeneral(f"it depends on the given sizes: {error}") from error
        pairs = list(zip(self.general.roots, roots, strict=True))
        if any(a.types != b.types for a, b in pairs) or not follows(pairs, steps):
            raise NotGeneral("its rewrites do not prove it for all sizes")
        # 3. nodes keep the candidate's names, except where the model names them
        names = {new: name for node, name in candidate.program.names.items() if (new := self.known.get(node))}
        program = self.general.with_outputs(roots)
        return Program(program.inputs, program.outputs, (), {**names, **program.names}, program.frame)

    def open_node(self, node: Node) -> Node:
        """Return the node with open sizes.  Raises Untypable where a node below it needs fixed sizes."""
        for part in () if node in self.known else topological_order([node], self.known):
            args = tuple(arg and self.known[arg] for arg in part.args)
            self.known[part] = part if part.op in (CONSTANT, INPUT) else self._apply(part, args)
        return self.known[node]

    def _apply(self, node: Node, args: tuple[Node | None, ...]) -> Node:
        """Return the node applied to arguments with open sizes.

        A twin on arguments of the same types, in the model or made by a rule, has the attributes for open
        sizes, and the types of an opaque operator.
        """
        types = [arg and arg.types for arg in args]
        for twin in self.twins.get(_head_key(node), ()):
            if [arg and arg.types for arg in twin.args] == types:
                return replace_args(twin, args)
        if node.op is OPAQUE:
            raise Untypable("the output types of an opaque operator depend on the sizes")
        return replace_args(node, args)

    def open_equation(self, equation: Equation) -> Equation | None:
        """Return the equation with open sizes; None where it is not proved, or not before another one is."""
        before = dict(self.known)
        try:
            left = tuple(map(self.open_node, equation.left))
            rule = self.rules.get(equation.name)
            # a rule is applied anew; the flush of subnormals is bounded anew; a finder's equation proved anew
            if rule is not None:
                made = self._apply_rule(rule, equation, left)
            elif isinstance(equation.evidence_source, Bounded):
                made = self._flush_subnormals(equation, left)
            else:
                made = self._prove_equation(equation, left)
        except (Untypable, ValueError, NotImplementedError):
            made = None
        if made is None:
            self.known = before  # a later equation may know better twins of these nodes
        return made

    def _apply_rule(self, rule: Rule, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Return the instance of the rule at the left side whose right side has the equation's operators."""
        matcher = Matcher(rule)
        for binding in matcher.bindings(left):  # a rule may match in several ways
            right = matcher.apply(left, binding)
            if right is not None:
                known = dict(self.known)
                if all(_align(a, b, known) for a, b in zip(equation.right, right, strict=True)):
                    for node in [node for node in known if node not in self.known]:
                        self.twins.setdefault(_head_key(node), []).append(known[node])
                    self.known = known
                    return instantiate_rule(rule, binding, left, right)
        return None

    def _flush_subnormals(self, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Return the equation that replaces subnormal constants by 0, if its error bound holds for all sizes.

        Constants are the same nodes at all sizes, so they are replaced in the model itself: a node that is
        typed at fixed sizes may be opaque at open sizes.
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

        # Where constants were only replaced, the right side consists of rebuilt nodes, and so of nodes of the
        # rebuilt open model.  Else expressions over constants were folded first (`flush_folded`).
        at_fixed_sizes = rebuilt(before)
        if tuple(at_fixed_sizes[root] for root in equation.left) == equation.right:
            at_open_sizes = rebuilt(self.general)
            for node, new in at_fixed_sizes.items():
                if (known := self.known.get(node)) in at_open_sizes:
                    self.known[new] = at_open_sizes[known]
        right = tuple(map(self.open_node, equation.right))
        made = replace(equation, left=left, right=right, leaves=self.general.inputs)
        return made if refute_flush(made) is None else None

    def _prove_equation(self, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Return a finder's equation with open sizes, if both sides have the same canonical form."""
        right = tuple(map(self.open_node, equation.right))
        leaves = tuple(map(self.open_node, equation.leaves))
        if len(left) != 1 or [n.types for n in left] != [n.types for n in right]:
            return None
        made = nested_equation(equation.name, left[0], right[0], leaves)
        return made if made.evidence.is_exact and str(made.evidence).startswith("proved") else None


def _head_key(node: Node) -> object:
    """Return a key of the node without its arguments: operator, attributes, types of arguments."""
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


def propose_other_sizes(general: Program, sizes: Mapping[Symbol, int]) -> Iterator[Shapes]:
    """Yield shapes of all inputs at other sizes of the symbols, the likeliest to be valid first.

    Many models need multiples of 8 or 32; half of a size, or a quarter more, often is one.
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
                if None in shape:  # a size that is no single symbol, such as 2*n
                    return
                shapes[node.attribute("name")] = tuple(n for n in shape if n is not None)
        if made != sizes:
            yield shapes
