"""Repeats the rewrites of a result that was found at fixed sizes for all sizes that the model leaves open.

`--shape` fixes sizes so that operators can be measured, and a user wants a result that still runs at all
sizes; few rewrites depend on the sizes.  The rewrites that led to the result are applied again to the model
with its sizes open: each rule computes its right side and the attributes in it anew, and its conditions are
decided for sizes that are symbols.  Congruence then proves the new program equal to the model.

    Reshape(Reshape(x, (6, 4)), (24,))  =>  Reshape(x, (24,))          at x[2, 3, 4]
    Reshape(Reshape(x, (3*n, 4)), (12*n,))  =>  Reshape(x, (12*n,))    at x[n, 3, 4]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensaurus.check.program.candidate import Candidate
from tensaurus.egraph.core.egraph_proof import follows
from tensaurus.graph.ir.node import CONSTANT, INPUT, ITEM, OPAQUE, Node, replace_args
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.ops import Untypable
from tensaurus.ops.eop import eop
from tensaurus.rules.language.equation import Equation, instantiate_rule
from tensaurus.rules.language.evidence import Bounded, Widened
from tensaurus.rules.language.match import Matcher
from tensaurus.rules.language.nested_calls import nested_equation
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.prove.subnormal_constants import flushed_constants, refute_flush
from tensaurus.rules.prove.wide_floats import refute_widening, widen_floats
from tensaurus.system.errors import TensaurusError

__all__ = ["NeedsFixedSizes", "open_all_sizes"]


class NeedsFixedSizes(TensaurusError):
    """A rewrite could not be proved for open sizes."""


def open_all_sizes(candidate: Candidate, model: Program, rules: Sequence[Rule]) -> Program:
    """Return the candidate's program for all sizes of `model`, the original with its sizes open.

    Raises NeedsFixedSizes with the first rewrite that is not proved for all of them.
    """
    return _SizeOpener.between(candidate.chain[0].program, model, rules).open_candidate(candidate)


@dataclass
class _SizeOpener:
    """Maps nodes at fixed sizes to nodes with open sizes.

    model        the original with its sizes open
    open_of      node at fixed sizes -> the same value with open sizes
    open_alikes  head of a node at fixed sizes (`_head_key`) -> nodes with open sizes that such nodes became.
                 For Reshape(y, (24,)) at y[6, 4] that is Reshape(x, (12*n,)) at x[3*n, 4]: it tells the
                 attributes of further nodes of this head
    """

    model: Program
    rules: Mapping[str, Rule]
    open_of: dict[Node, Node] = field(default_factory=dict)
    open_alikes: dict[object, list[Node]] = field(default_factory=dict)

    @classmethod
    def between(cls, fixed: Program, model: Program, rules: Sequence[Rule]) -> _SizeOpener:
        """Begin with the inputs and with nodes of equal names in both programs.

        A pair that is wrong does no harm: congruence does not prove the result then.
        """
        opener = cls(model, {rule.name: rule for rule in rules})
        open_of, open_of_name = opener.open_of, {name: node for node, name in model.names.items()}
        open_of.update(zip(fixed.inputs, model.inputs, strict=True))
        for node, name in fixed.names.items():
            if (opened := open_of_name.get(name)) is not None and opened.op in (node.op, OPAQUE):
                open_of.setdefault(node, opened)
                # where both are one output of a call, the calls correspond, too
                call, open_call = (n.args[0] if n.op is ITEM else None for n in (node, opened))
                if call is not None and open_call is not None:
                    open_of.setdefault(call, open_call)
        for node in fixed.nodes:
            if (opened := open_of.get(node)) is not None and opened.op is node.op:
                opener.open_alikes.setdefault(_head_key(node), []).append(opened)
        return opener

    def open_candidate(self, candidate: Candidate) -> Program:
        """Return the candidate's program with open sizes.  Raises NeedsFixedSizes."""
        # 1. open the equations, as many as can be, until none is left or none more can be opened
        waiting, opened = list(dict.fromkeys(candidate.applied)), list[Equation]()
        while waiting:
            failed = list[Equation]()
            for equation in waiting:  # an equation may rewrite nodes that a later one makes: then try again
                if (open_equation := self.open_equation(equation)) is None:
                    failed.append(equation)
                else:
                    opened.append(open_equation)
            if len(failed) == len(waiting):
                # what reads a kernel's output fails, too: the kernel is the reason
                if any(node.op is eop for e in failed for node in topological_order(e.right)):
                    raise NeedsFixedSizes("generated kernels compute only the given sizes")
                raise NeedsFixedSizes(f"the rewrite {failed[0].name} is proved only for the given sizes")
            waiting = failed
        # 2. open the program, which must follow from the opened equations
        try:
            roots = [self.open_node(root) for root in candidate.program.roots]
        except Untypable as error:
            raise NeedsFixedSizes(f"it depends on the given sizes: {error}") from error
        pairs = list(zip(self.model.roots, roots, strict=True))
        if any(a.types != b.types for a, b in pairs) or not follows(pairs, opened):
            raise NeedsFixedSizes("its rewrites do not prove it for all sizes")
        # 3. nodes keep the candidate's names, except where the model names them
        names = candidate.program.names.items()
        open_names = {self.open_of[node]: name for node, name in names if node in self.open_of}
        program = self.model.with_outputs(roots)
        return Program(program.inputs, program.outputs, (), {**open_names, **program.names}, program.frame)

    def open_node(self, node: Node) -> Node:
        """Return the node with open sizes.  Raises Untypable where a node below it needs fixed sizes."""
        for part in () if node in self.open_of else topological_order([node], self.open_of):
            args = tuple(arg and self.open_of[arg] for arg in part.args)
            self.open_of[part] = part if part.op in (CONSTANT, INPUT) else self._apply_to_open(part, args)
        return self.open_of[node]

    def _apply_to_open(self, node: Node, args: tuple[Node | None, ...]) -> Node:
        """Return the node applied to arguments with open sizes.

        A node alike on arguments of the same types, in the model or made by a rule, has the attributes for
        open sizes, and the types of an opaque operator.
        """
        types = [arg and arg.types for arg in args]
        for alike in self.open_alikes.get(_head_key(node), ()):
            if [arg and arg.types for arg in alike.args] == types:
                return replace_args(alike, args)
        if node.op is OPAQUE:
            raise Untypable("the output types of an opaque operator depend on the sizes")
        return replace_args(node, args)

    def open_equation(self, equation: Equation) -> Equation | None:
        """Return the equation with open sizes; None where it is not proved, or not before another one is."""
        before = dict(self.open_of)
        try:
            left = tuple(map(self.open_node, equation.left))
            rule = self.rules.get(equation.name)
            # a rule, a flush of subnormals, wider types: applied anew; a finder's equation is proved anew
            if rule is not None:
                made = self._apply_rule(rule, equation, left)
            elif isinstance(equation.evidence_source, Bounded):
                made = self._flush_subnormals(equation, left)
            elif isinstance(equation.evidence_source, Widened):
                made = self._widen_floats(equation, left)
            else:
                made = self._prove_equation(equation, left)
        except (Untypable, ValueError, NotImplementedError):
            made = None
        if made is None:
            self.open_of = before  # a later equation may open these nodes better
        return made

    def _apply_rule(self, rule: Rule, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Return the instance of the rule at the left side whose right side has the equation's operators."""
        matcher = Matcher(rule)
        for binding in matcher.match_roots(left):  # a rule may match in several ways
            right = matcher.apply(left, binding)
            if right is not None:
                open_of = dict(self.open_of)
                if all(_pair_nodes(a, b, open_of) for a, b in zip(equation.right, right, strict=True)):
                    for node in open_of:
                        if node not in self.open_of:
                            self.open_alikes.setdefault(_head_key(node), []).append(open_of[node])
                    self.open_of = open_of
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
            at_open_sizes = rebuilt(self.model)
            for node, new in at_fixed_sizes.items():
                if (opened := self.open_of.get(node)) in at_open_sizes:
                    self.open_of[new] = at_open_sizes[opened]
        right = tuple(map(self.open_node, equation.right))
        made = replace(equation, left=left, right=right, leaves=self.model.inputs)
        return made if refute_flush(made) is None else None

    def _widen_floats(self, equation: Equation, left: tuple[Node, ...]) -> Equation | None:
        """Return the equation that computes the model in wider types, checked with the model's open sizes.

        The nodes are paired by a widening of both programs: one may be typed at fixed sizes alone.
        """
        before = Program(equation.leaves, tuple((str(k), root) for k, root in enumerate(equation.left)))
        at_fixed_sizes, at_open_sizes = dict[Node, Node](), dict[Node, Node]()
        widen_floats(before, at_fixed_sizes)
        widen_floats(self.model, at_open_sizes)
        for node, new in at_fixed_sizes.items():
            if (opened := self.open_of.get(node)) in at_open_sizes:
                self.open_of[new] = at_open_sizes[opened]
        right = tuple(map(self.open_node, equation.right))
        made = replace(equation, left=left, right=right, leaves=self.model.inputs)
        return made if refute_widening(made) is None else None

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


def _pair_nodes(fixed: Node | None, opened: Node | None, open_of: dict[Node, Node]) -> bool:
    """Record in `open_of`, for each node of the tree at fixed sizes, the node at its place in the open tree.

    Returns False where the two trees have different operators.
    """
    waiting = [(fixed, opened, False)]
    while waiting:
        one, other, args_are_paired = waiting.pop()
        if one is None or other is None:
            if one is not other:
                return False
        elif args_are_paired:
            open_of[one] = other
        elif one not in open_of:
            if one.op is not other.op or len(one.args) != len(other.args):
                return False
            waiting.append((one, other, True))
            waiting += [(a, b, False) for a, b in zip(one.args[::-1], other.args[::-1], strict=True)]
    return True
