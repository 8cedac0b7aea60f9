"""One case of a rule: types and attribute values over symbols, and the assumptions about them.

`case_split` starts from an empty `CaseState`, which grows while the left side is built.  One of
Concat(x, y, axis=k) has the types x [x0.1, x1.1] and y [y0.1, x1.1], and the value k = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensaurus.expr.ir.scope import Body, Read, Tensor
from tensaurus.expr.sizes.open_questions import Question, ask
from tensaurus.expr.sizes.size import (
    Atom,
    Poly,
    Size,
    Symbol,
    atoms,
    is_nonnegative,
    is_same_size,
    substitute,
)
from tensaurus.graph.ir.node import Node, source
from tensaurus.ops import TensorType
from tensaurus.rules.language.match import Binding
from tensaurus.rules.language.side_conditions import Fact, Undefined
from tensaurus.rules.prove.size_assumptions import (
    NO_LOWER_BOUND,
    SIZE_QUESTIONS,
    Replacements,
    fresh_names,
    solve_question,
)
from tensaurus.rules.prove.unknown_values import substitute_attribute, symbols_of

BELOW_ZERO_SHARE = 0.2  # share of the symbols without a lower bound that are drawn from -2 on instead of 0


class VariableFact(Fact):
    """What conditions may ask of a tensor variable of a case: unknown answers become questions."""

    def __init__(self, name: str, kind: TensorType):
        self.name, self.shape, self.dtype = name, kind.shape, kind.dtype

    @property
    def static(self) -> bool:  # type: ignore[override]
        return ask("static", self.name)

    @property
    def value(self) -> Any:
        if not self.static or not all(is_same_size(n, 1) for n in self.shape):
            raise Undefined("not a scalar constant")
        return Read(Tensor(self.name, self.shape, self.dtype), (0,) * len(self.shape))

    @property
    def positive(self) -> bool:
        return self.static and ask("positive", self.name)

    @property
    def filled(self) -> Any:
        raise TypeError(f"what fills {self.name}")  # open, not Undefined: some constants have such a number


class CaseBinding(Binding):
    """The binding of a case, whose facts come from types instead of nodes."""

    def facts(self) -> Mapping[str, Fact]:
        return {name: VariableFact(name, node.tensor) for name, node in self.nodes.items()}


@dataclass(frozen=True)
class CaseState:
    """Types of variables, values of attributes (of rests: dicts), and the assumed answers.

    name_counts  number of symbols made for each hint, as counted by `fresh_names`; includes replaced symbols
    """

    types: Mapping[str, TensorType] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[Question, bool] = field(default_factory=dict)
    name_counts: Mapping[str, int] = field(default_factory=dict)

    def solve(self, question: Question) -> tuple[list[Replacements] | None, CaseState]:
        """Return replacements of symbols that make the answer yes, and the state with their names taken."""
        with fresh_names(self.name_counts) as names:
            found = solve_question(question)
        return found, replace(self, name_counts=names.taken)

    def substitute(self, values: Replacements) -> CaseState | None:
        """Return the state with symbols replaced; None if that contradicts an answer or divides by zero."""
        try:
            return self._substitute(values)
        except (ZeroDivisionError, ValueError):
            return None

    def _substitute(self, values: Replacements) -> CaseState | None:
        assumed: dict[Question, bool] = {}
        for own, value in values.items():
            # the symbol's lower bound becomes an assumption about its value
            if isinstance(own, Symbol) and own.low > NO_LOWER_BOUND and not is_nonnegative(value - own.low):
                assumed[Question("nonnegative", value - own.low)] = True
        for question, known in self.assumed.items():
            if question.kind in SIZE_QUESTIONS:
                size = substitute(question.subject, values)
                if isinstance(size, Poly):
                    if question.kind == "zero":
                        size = size if size.terms[0][1] > 0 else -size  # n - m and m - n are one question
                    elif known and is_nonnegative(-1 - size):  # assumed to be at least 0, and below 0
                        return None
                    assumed[Question(question.kind, size)] = known
                elif (size == 0 if question.kind == "zero" else size >= 0) != known:
                    return None
            else:
                assumed[question] = known
        types = {
            name: TensorType(kind.dtype, tuple(substitute(n, values) for n in kind.shape))
            for name, kind in self.types.items()
        }
        given = {
            name: {k: substitute_attribute(v, values) for k, v in value.items()} if isinstance(value, dict)
            else substitute_attribute(value, values)
            for name, value in self.values.items()
        }  # fmt: skip
        state = CaseState(types, given, assumed, self.name_counts)
        for question, known in assumed.items():
            # what is at least 0 and at most 0 is 0
            if known and question.kind == "nonnegative" and is_nonnegative(-question.subject):
                options, state = state.solve(Question("zero", question.subject))
                if options is not None and len(options) == 1:
                    return state.substitute(options[0])
        return state

    def with_answer(self, question: Question, known: bool) -> CaseState:
        """Return the state with one more assumed answer."""
        return replace(self, assumed={**self.assumed, question: known})

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols in the order of types and attributes, so that every process draws alike."""
        sizes = [n for kind in self.types.values() for n in kind.shape]
        values = [tuple(v.values()) if isinstance(v, dict) else v for v in self.values.values()]
        groups = [*map(atoms, sizes), *map(symbols_of, values)]
        named = (a for group in groups for a in sorted(group, key=lambda a: a.key) if isinstance(a, Symbol))
        return tuple(dict.fromkeys(named))

    def draw_numbers(self, rng: np.random.Generator) -> CaseState | None:
        """Return the state with small numbers for symbols, None if they contradict an answer."""
        share = rng.random()  # of the symbols that are not at their lower bound
        values: dict[Atom, Size] = {}
        for symbol in self.symbols:
            least = symbol.low if symbol.low > NO_LOWER_BOUND else -2 * int(rng.random() < BELOW_ZERO_SHARE)
            values[symbol] = least + (int(rng.integers(0, 4)) if rng.random() < share else 0)
        return self.substitute(values)

    def binding(self) -> CaseBinding:
        """Return a binding of each variable to a leaf; unknown numbers of attributes become leaves, too."""
        nodes = {name: source(name, kind) for name, kind in self.types.items()}
        dtype = next((kind.dtype for kind in self.types.values()), "float32")
        for name, value in self.values.items():
            if isinstance(value, Body):
                assert isinstance(value, Read) and isinstance(value.source, Tensor)
                nodes[name] = source(value.source.name, TensorType(dtype, ()))
        values = {k: dict(v) if isinstance(v, dict) else v for k, v in self.values.items()}
        return CaseBinding(nodes, values)

    def __str__(self) -> str:
        kinds = [f"{name} {list(kind.shape)}" for name, kind in self.types.items()]
        given = [
            f"{k}={v}"
            for name, value in self.values.items()
            for k, v in (value.items() if isinstance(value, dict) else [(name, value)])
        ]
        return ", ".join(kinds + given).replace("'", "")


@dataclass(frozen=True)
class Case:
    """Both sides of a rule in one state."""

    state: CaseState
    left: tuple[Node, ...]
    right: tuple[Node, ...]


@dataclass(frozen=True)
class Gap:
    """Instances that no case covers, and why."""

    reason: str
