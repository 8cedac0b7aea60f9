"""Compiles the right side of a rule to code that inserts its e-nodes, as it runs for every match.

Plans whose steps have the same form share the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from tensaurus.egraph.core.class_analysis import Analysis
from tensaurus.egraph.core.egraph import ABSENT, EGraph
from tensaurus.egraph.core.enode_head import Head
from tensaurus.graph.ir.node import Node

__all__ = ["Insert", "Step", "insert_function"]


class Step(NamedTuple):
    """One e-node to insert; arguments are variables (by number), earlier steps (~number) or absent (None)."""

    head: Head
    args: tuple[int | None, ...]
    analyses: tuple[Analysis, Analysis]  # of its types, see `types_only`
    node: Node | None  # the constant that the step inserts, if it inserts one


# Takes an e-graph, the terms of the variables and their classes; returns the e-node of each step.
Insert: TypeAlias = Callable[[EGraph, Sequence[int], Sequence[int]], tuple[int, ...]]


def insert_function(steps: Sequence[Step], variables: int) -> Insert:
    """Return the function that inserts the steps, one after the other."""
    form = tuple([None if step.node is not None else step.args for step in steps])
    made: Insert = _compile_inserter(form, variables)(*[part for step in steps for part in step])
    return made


@cache
def _compile_inserter(
    form: tuple[tuple[int | None, ...] | None, ...], variables: int
) -> Callable[..., Insert]:
    """Compile code that inserts steps of this form: the arguments of each step, None for a constant.

    In the code h1, a1, f1, n1 are the fields of step 1, m1 is its e-node and d1 its class; t1 is the term of
    variable 1 and c1 its class.  Add(x, 1), with step 0 for the constant, becomes inside of `over`:

        def insert(graph, terms, classes):
            known, parents = graph.known, graph.parents
            t0, = terms
            c0, = classes
            m0 = graph.insert_term(n0)
            d0 = parents[m0]
            if parents[d0] != d0: d0 = graph.find(m0)
            key = (h1, c0, d0,)
            m1 = known.get(key)
            if m1 is None: m1 = graph.insert(key, (t0, m0, ), f1)
            return (m0, m1, )
    """
    named = "".join(f"h{k}, a{k}, f{k}, n{k}, " for k in range(len(form)))
    lines = [f"def over({named}):", "    def insert(graph, terms, classes):"]
    lines += ["        known, parents = graph.known, graph.parents"]
    if variables:
        lines += [f"        {''.join(f't{k}, ' for k in range(variables))} = terms"]
        lines += [f"        {''.join(f'c{k}, ' for k in range(variables))} = classes"]
    for number, args in enumerate(form):
        if args is None:
            lines += [f"        m{number} = graph.insert_term(n{number})"]
        else:
            original_args = "".join(f"{_argument_code(a, 't', 'm')}, " for a in args)
            classes = "".join(f", {_argument_code(a, 'c', 'd')}" for a in args)
            lines += [f"        key = (h{number}{classes},)", f"        m{number} = known.get(key)"]
            insertion = f"graph.insert(key, ({original_args}), f{number})"
            lines += [f"        if m{number} is None: m{number} = {insertion}"]
        if any(~number in others for others in form[number + 1 :] if others):
            lines += [f"        d{number} = parents[m{number}]"]
            lines += [f"        if parents[d{number}] != d{number}: d{number} = graph.find(m{number})"]
    lines += [f"        return ({''.join(f'm{k}, ' for k in range(len(form)))})", "    return insert"]
    scope: dict[str, Any] = {}
    exec(compile("\n".join(lines), "<plan>", "exec"), scope)  # written above from numbers alone
    made: Callable[..., Insert] = scope["over"]
    return made


def _argument_code(arg: int | None, variable: str, step: str) -> str:
    if arg is None:
        return str(ABSENT)
    return f"{variable}{arg}" if arg >= 0 else f"{step}{~arg}"
