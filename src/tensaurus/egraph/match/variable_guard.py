"""Evaluates conditions of rules that depend on the types of one variable only, once for all equal types.

Searches of patterns ask a guard about each class before they bind a variable to it (`pattern`).  For a rule
`where rank(x) == 2` that of x says True of the code of f32[3,4], False of that of f32[4].
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache

from tensaurus.egraph.core.class_analysis import Analysis, types_of_code, types_only
from tensaurus.ops.element_type import REAL_TYPES
from tensaurus.rules.language.occurrences import names_in
from tensaurus.rules.language.rule import Rule
from tensaurus.rules.language.side_conditions import FUNCTIONS, Fact, Undefined, holds
from tensaurus.system.syntax import parse_expression

__all__ = ["ASKS_CONTENT", "Guard", "ClassFact", "called_functions", "variable_guards"]

# Functions in conditions that depend on the elements of a constant, not on types only.
ASKS_CONTENT = frozenset({"value", "filled", "positive"})


class ClassFact(Fact):
    """A class as conditions see it.  Raises Undefined if the class is not a tensor."""

    def __init__(self, analysis: Analysis):
        kind = analysis.tensor
        if kind is None:
            raise Undefined("not a tensor")
        self.shape, self.dtype, self.static = kind.shape, kind.dtype, analysis.static
        self._analysis = analysis

    @property
    def value(self) -> Fraction:
        if self._analysis.scalar is None:
            raise Undefined("not a scalar constant")
        return self._analysis.scalar

    @property
    def filled(self) -> Fraction:
        if self._analysis.filled is None:
            raise Undefined("not a constant of one number")
        return self._analysis.filled

    @property
    def positive(self) -> bool:
        return self._analysis.positive


class Guard(dict[int, bool]):
    """Maps the code of a class's analysis to whether the conditions hold; evaluated at the first use.

    `name` is the variable in the conditions.  With `floats` its element type must be one of REAL_TYPES.
    """

    def __init__(self, conditions: Sequence[ast.expr], name: str, floats: bool):
        super().__init__()
        self.conditions, self.name, self.floats = conditions, name, floats

    def __missing__(self, code: int) -> bool:
        self[code] = holds = self._holds(code)
        return holds

    def _holds(self, code: int) -> bool:
        types, static = types_of_code(code)
        analysis = types_only(types).static if static else types_only(types).dynamic
        kind = analysis.tensor
        if kind is None or self.floats and kind.dtype not in REAL_TYPES:
            return False
        try:
            names = {self.name: ClassFact(analysis)}
            return all(holds(condition, names) for condition in self.conditions)
        except Undefined:
            return False


def variable_guards(rule: Rule) -> Mapping[str, Guard]:
    """Return the guards of a rule's variables; rules with equal conditions on a variable share a guard."""
    floats = "any" not in rule.tags
    conditions_of: dict[str, list[str]] = {}
    for condition in rule.where:
        loops = (node for node in ast.walk(condition) if isinstance(node, ast.comprehension))
        bound = {name for loop in loops for name in names_in(loop.target)}
        names = names_in(condition) - bound - FUNCTIONS.keys()
        asks_content = called_functions(condition) & ASKS_CONTENT
        if len(names) == 1 and names <= rule.variables.keys() and not asks_content:
            (name,) = names
            conditions_of.setdefault(name, []).append(_anonymize(name, condition))
    return {name: _guard(tuple(conditions), floats) for name, conditions in conditions_of.items()}


def _anonymize(name: str, condition: ast.expr) -> str:
    """Return the condition's text with the variable renamed to `_`."""
    return re.sub(rf"\b{name}\b", "_", ast.unparse(condition))


@cache
def _guard(conditions: tuple[str, ...], floats: bool) -> Guard:
    return Guard([parse_expression(text) for text in conditions], "_", floats)


def called_functions(tree: ast.expr) -> set[str]:
    """Return the names of the functions that an expression calls."""
    functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {func.id for func in functions if isinstance(func, ast.Name)}
