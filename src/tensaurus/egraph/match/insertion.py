"""Compiles the right side of a rule to code that inserts its e-nodes, as it runs for every match.

Plans whose steps have the same form share the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.core.class_analysis import AnalysisPair
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.core.enode_head import Head
from tensaurus.graph.ir.node import Node

__all__ = ["Insert", "Ref", "Step", "insert_function", "resolve"]

Ref: TypeAlias = int  # what a plan reads: the number of a variable, or ~number of an earlier step


class Step(NamedTuple):
    """One e-node to insert; None stands for an absent argument."""

    head: Head
    args: tuple[Ref | None, ...]
    analyses: AnalysisPair  # `types_only` of its types
    node: Node | None  # the constant that the step inserts, if it inserts one


def resolve(ref: Ref | None, terms: Sequence[int], enodes: Any) -> Any:
    """Return the e-node of an argument, ABSENT for None.

    `terms` are those of the variables.  `enodes` are those of the steps, by number; they may be None.
    """
    return ABSENT if ref is None else terms[ref] if ref >= 0 else enodes[~ref]


# Takes an e-graph, the terms of the variables and their classes; returns the e-node of each step.
Insert: TypeAlias = Callable[[EGraph, Sequence[int], Sequence[int]], tuple[int, ...]]


def insert_function(steps: Sequence[Step], variables: int) -> Insert:
    """Return the function that inserts the steps, one after the other."""
    form = tuple([None if step.node is not None else step.args for step in steps])
    made: Insert = _compile_inserter(form, variables)(*[part for step in steps for part in step])
    return made


@cache
def _compile_inserter(
    form: tuple[tuple[Ref | None, ...] | None, ...], variables: int
) -> Callable[..., Insert]:
    """Compile code that inserts steps of this form: the arguments of each step, None for a constant.

    The outer function takes the fields of all steps.  Add(x, 1), with step 0 for the constant, becomes:

        def make(head0, args0, analyses0, node0, head1, args1, analyses1, node1, ):
            def insert(graph, terms, classes):
                hashcons, union_find = graph.hashcons, graph.union_find
                x0, = terms
                x0_class, = classes
                enode0 = graph.insert_term(node0)
                class0 = union_find[enode0]
                if union_find[class0] != class0: class0 = graph.find(enode0)
                key = (head1, x0_class, class0,)
                enode1 = hashcons.get(key)
                if enode1 is None: enode1 = graph.insert(key, (x0, enode0, ), analyses1)
                return (enode0, enode1, )
            return insert
    """
    fields = "".join(f"head{k}, args{k}, analyses{k}, node{k}, " for k in range(len(form)))
    lines = [f"def make({fields}):", "    def insert(graph, terms, classes):"]
    lines += ["        hashcons, union_find = graph.hashcons, graph.union_find"]
    if variables:
        lines += [f"        {''.join(f'x{k}, ' for k in range(variables))} = terms"]
        lines += [f"        {''.join(f'x{k}_class, ' for k in range(variables))} = classes"]
    for k, args in enumerate(form):
        if args is None:
            lines += [f"        enode{k} = graph.insert_term(node{k})"]
        else:
            original_args = "".join(f"{_argument_code(ref, 'x{}', 'enode{}')}, " for ref in args)
            classes = "".join(f", {_argument_code(ref, 'x{}_class', 'class{}')}" for ref in args)
            lines += [f"        key = (head{k}{classes},)", f"        enode{k} = hashcons.get(key)"]
            insertion = f"graph.insert(key, ({original_args}), analyses{k})"
            lines += [f"        if enode{k} is None: enode{k} = {insertion}"]
        if any(~k in later for later in form[k + 1 :] if later):
            lines += [f"        class{k} = union_find[enode{k}]"]
            lines += [f"        if union_find[class{k}] != class{k}: class{k} = graph.find(enode{k})"]
    lines += [f"        return ({''.join(f'enode{k}, ' for k in range(len(form)))})", "    return insert"]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), "<plan>", "exec"), scope)  # written above from numbers alone
    made: Callable[..., Insert] = scope["make"]
    return made


def _argument_code(ref: Ref | None, variable: str, step: str) -> str:
    if ref is None:
        return str(ABSENT)
    return variable.format(ref) if ref >= 0 else step.format(~ref)
