"""Decide whether the evidence of a rule covers a match, and prove a match that it does not cover.

A rule's evidence contains a text that says what it covers.  Such a text is a list of parts, of which each may
set a limit; the first of these is from a proof, the second from a test:

    all sizes, ranks 0-5, sizes of one in broadcasting to rank 2, axes of up to the rank
    40 instances of ranks 1-3, element types float32 int8, never varied: k=0 a.axes=None

A proof covers some ranks, the values that attributes have in the operators' examples, and tuples up to some
length; a test covers what its instances had.  A match within these limits is an instance of what was shown.
Any other match is used only if both sides are equal at its own types: by their canonical forms, or by Z3
within a small budget.

Proofs cover all sizes, but only sizes of at least 1, unless they have no limits at all (all ranks).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations
from math import inf
from typing import Any, NamedTuple

from tensaurus.expr.ir.scope import Const, Scope, Source, Tensor, call, compute
from tensaurus.expr.sizes.size import is_same_size
from tensaurus.graph.ir.node import CONSTANT, Node
from tensaurus.ops import Op, TensorType, Untypable
from tensaurus.rules.language.coverage_text import NEVER_VARIED, coverage_text
from tensaurus.rules.language.evidence import Evidence, Proved, Tested
from tensaurus.rules.language.occurrences import inner_first
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import Fact, Undefined
from tensaurus.rules.language.term import Variable
from tensaurus.rules.prove.attribute_values import is_covered
from tensaurus.rules.prove.expression_prover import NotProved, prove_equal_over
from tensaurus.rules.prove.unknown_values import UNKNOWN_VALUE_ERRORS

__all__ = ["Limits", "prove_match"]

AT_THESE_TYPES = "at these types"


class OpenAttribute(NamedTuple):
    """An attribute whose value the left side leaves open: a match binds it to a name, or to a key of a rest.

    In Softmax(x, axis=k, **a), `axis` is bound to the name k, every other attribute to a key of the rest a.

    name   the name that the match binds: k or a in this example
    key    the attribute's name as the key in the rest; None where it is bound to a name of its own
    first  the variable that is the operator's first argument, whose rank tells a tuple's length; None where
           that argument is no variable
    """

    op: Op
    attribute: str
    name: str
    key: str | None
    first: str | None

    @property
    def text(self) -> str:
        """The attribute's name in coverage texts."""
        return self.name if self.key is None else f"{self.name}.{self.key}"

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value that a match binds the attribute to."""
        return values[self.name] if self.key is None else values[self.name][self.key]


@dataclass(frozen=True)
class Limits:
    """The limits of one rule's evidence, parsed from the text of its coverage."""

    rule: Rule

    @cached_property
    def text(self) -> str:
        """The text of the evidence's coverage."""
        return coverage_text(self.rule.evidence)

    @cached_property
    def max_rank(self) -> float:
        """Largest rank that a variable may have, inf where there is no limit."""
        return _find_number(r"ranks \d+-(\d+)", self.text)

    @cached_property
    def min_rank(self) -> float:
        """Least rank that the variable of largest rank may have in a match.

        It is 0 for a proof: a proof tries all ranks from 0 on, so that below its first rank nothing matches.
        """
        found = re.search(r"ranks (\d+)-", self.text)
        return float(found[1]) if found and isinstance(self.rule.evidence, Tested) else 0

    @cached_property
    def max_broadcast_rank(self) -> float:
        """Largest rank at which a size of 1 may be broadcast."""
        return _find_number(r"sizes of one in broadcasting to rank (\d+)", self.text)

    @cached_property
    def element_types(self) -> frozenset[str]:
        """The element types of the instances; empty where any type is covered."""
        found = re.search(r"element types ([a-z0-9 ]+)", self.text)
        return frozenset(found[1].split()) if found else frozenset()

    @cached_property
    def constant_attributes(self) -> Mapping[str, str]:
        """Attributes that had one value in all instances, with that value as text."""
        _, _, pairs = self.text.partition(NEVER_VARIED)
        return dict(re.findall(r"([\w.]+)=(\([^()]*\)|[^\s,()]+)", pairs))

    @cached_property
    def open_attributes(self) -> Sequence[OpenAttribute]:
        """The attributes that the left side leaves open."""
        found: list[OpenAttribute] = []
        for term in (a for root in self.rule.lhs for a in inner_first(root)):
            first = term.args[0].name if term.args and isinstance(term.args[0], Variable) else None
            fixed = {name for name, _ in term.attrs}
            for name, tree in term.attrs:
                if isinstance(tree, ast.Name):
                    found.append(OpenAttribute(term.op, name, tree.id, None, first))
            for name in term.op.attributes if term.rest is not None else ():
                if name not in fixed:
                    found.append(OpenAttribute(term.op, name, str(term.rest), name, first))
        return found

    @cached_property
    def _limited_attributes(self) -> Sequence[OpenAttribute]:
        """Open attributes of which the evidence covers only some values.

        These are the attributes that the text names ("axes of up to the rank").  If a proof has a largest
        rank, they are all open attributes, since the values that it covers depend on the rank (`is_covered`).
        """
        if isinstance(self.rule.evidence, Proved) and self.max_rank < inf:
            return self.open_attributes
        groups = re.findall(r", ([\w ]+?) (?:as in|of up to|whole)", self.text)
        names = {name for group in groups for name in group.split(" and ")}
        return [each for each in self.open_attributes if each.attribute in names]

    @cached_property
    def has_no_limits(self) -> bool:
        """Whether the evidence covers every match."""
        bounded = self.max_rank < inf or self.max_broadcast_rank < inf
        return not (bounded or self.element_types or self.constant_attributes or self._limited_attributes)

    def covers(self, facts: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Return whether the evidence covers a match.

        facts   of each variable (`Fact`)
        values  what the match binds names of attributes to
        """
        if self.has_no_limits:
            return True
        shapes = {name: facts[name].shape for name in self.rule.variables if name in facts}
        highest = max(map(len, shapes.values()), default=0)
        if not self.min_rank <= highest <= self.max_rank:
            return False
        if highest > self.max_broadcast_rank and _broadcasts(list(shapes.values())):
            return False
        # proofs cover sizes from 1 on; tests the element types and the never varied attributes of instances
        if isinstance(self.rule.evidence, Proved) and 0 in chain.from_iterable(shapes.values()):
            return False
        if self.element_types and any(facts[name].dtype not in self.element_types for name in shapes):
            return False
        for each in self.open_attributes if self.constant_attributes else ():
            if str(each.value(values)) != self.constant_attributes.get(each.text, str(each.value(values))):
                return False
        ranks = {name: len(shape) for name, shape in shapes.items()}
        return all(
            is_covered(each.op, each.attribute, ranks.get(each.first or "", highest), each.value(values))
            for each in self._limited_attributes
        )


def _find_number(pattern: str, texts: str) -> float:
    """Return the number that the pattern's group finds; inf where there is none, and so no limit."""
    found = re.search(pattern, texts)
    return float(found[1]) if found else inf


def _broadcasts(shapes: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether a size of 1 meets another size where two shapes are aligned at their last dimensions."""
    return any(
        is_same_size(n, 1) != is_same_size(m, 1)
        for first, second in combinations(shapes, 2)
        for n, m in zip(first[::-1], second[::-1], strict=False)
    )


def prove_match(
    left: Sequence[Node],
    right: Sequence[Node],
    nodes: Mapping[str, Node],
    facts: Mapping[str, Fact],
) -> Evidence | None:
    """Return a proof that the sides of a match are equal at its own types; None where there is no proof."""
    leaves = {node: _leaf_of_variable(name, node, facts[name]) for name, node in nodes.items()}

    def leaf(node: Node) -> Source | None:
        return leaves.get(node) or (_leaf_of_constant(node) if node.op is CONSTANT else None)

    used = set[str]()
    for old, new in zip(left, right, strict=True):
        if 0 in old.tensor.shape:
            continue  # an empty tensor has no elements that could differ
        try:
            verdict = prove_equal_over(old, new, leaf)
        except (Untypable, RecursionError, *UNKNOWN_VALUE_ERRORS):
            return None
        if isinstance(verdict, NotProved):
            return None
        used.add(verdict.by)
    return Proved("z3", f"all reals, {AT_THESE_TYPES}") if "z3" in used else Proved("algebra", AT_THESE_TYPES)


def _leaf_of_variable(name: str, node: Node, fact: Fact) -> Source:
    """Return the leaf of a variable: the number for a constant of one number, else a tensor."""
    kind = node.tensor
    try:
        return _filled_tensor(kind, fact.filled)
    except Undefined:
        return Tensor(name, kind.shape, kind.dtype, fact.static and fact.positive)


def _leaf_of_constant(node: Node) -> Source:
    """Return the number of a constant that the rule writes."""
    return _filled_tensor(node.tensor, Fraction(node.attribute("data").array.item()))


def _filled_tensor(kind: TensorType, number: Fraction) -> Scope:
    """Return the tensor of this type whose elements all equal the number."""
    return compute(kind.shape, lambda *_: call(f"to_{kind.dtype}", Const(number)))
