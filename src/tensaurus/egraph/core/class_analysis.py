"""Keeps what is known of each e-class beside its e-nodes: egg's e-class analysis (POPL'21, section 4).

`EGraph` makes an `Analysis` for each new class and joins two at a union; conditions of rules ask for facts.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import NamedTuple

from tensaurus.graph.ir.node import Node, Type
from tensaurus.ops import TensorType
from tensaurus.rules.language.match import filled_value

__all__ = ["Analysis", "AnalysisPair", "make_analysis", "types_of_code", "intern_number", "types_only"]

# All e-graphs share these tables, as there are few types and numbers.
_codes: dict[tuple[tuple[Type, ...], bool], int] = {}  # {(types, static): `Analysis.code`}
_types_of_codes: list[tuple[tuple[Type, ...], bool]] = []  # the keys of `_codes`, by code
_contents: dict[tuple[int, Fraction | None, Fraction | None, bool], int] = {}  # for `Analysis.content`
_interned_numbers: dict[Fraction, Fraction] = {}


class Analysis:
    """The facts about one class.

    types     the types of its outputs
    code      a number for `types` and `static` together, the same in all e-graphs: a key of caches
    static    whether an e-node of the class depends on constants only, so that it is computed ahead of time
    constant  a CONSTANT node in the class, whose elements are known, if there is one
    scalar    the value of `constant` where it has one finite element, else None
    """

    __slots__ = ("types", "code", "static", "constant", "scalar", "_content", "_filled", "_positive")

    def __init__(
        self, types: tuple[Type, ...], code: int, static: bool, constant: Node | None, scalar: Fraction | None
    ):
        self.types, self.code, self.static, self.constant, self.scalar = types, code, static, constant, scalar
        self._content: int | None = None
        self._positive: bool | None = None
        self._filled: tuple[Fraction | None] | None = None  # a tuple once `filled`, maybe None, is known

    @property
    def tensor(self) -> TensorType | None:
        """The type of the only output, if it is a tensor."""
        only = self.types[0] if len(self.types) == 1 else None
        return only if isinstance(only, TensorType) else None

    @property
    def positive(self) -> bool:
        """Whether the class is a constant whose elements are all above zero."""
        if self._positive is None:
            node = self.constant
            self._positive = node is not None and bool((node.attribute("data").array > 0).all())
        return self._positive

    @property
    def filled(self) -> Fraction | None:
        """The number to which all elements of the constant are equal, if there is one."""
        if self._filled is None:
            self._filled = (None if self.constant is None else filled_value(self.constant),)
        return self._filled[0]

    @property
    def content(self) -> int:
        """An interned number: equal for two classes about which all conditions of rules have equal answers.

        It stands for `code`, `scalar`, `filled` and `positive`.
        """
        if self._content is None:
            key = (self.code, self.scalar, self.filled, self.positive)
            self._content = _contents.setdefault(key, len(_contents))
        return self._content

    def join(self, other: Analysis) -> Analysis:
        """Return the facts about the union of two classes; raises ValueError where their types differ."""
        if self.types != other.types:
            raise ValueError(f"a union of {self.types} and {other.types}")
        scalar = self.scalar if self.scalar is not None else other.scalar
        return make_analysis(self.types, self.static or other.static, self.constant or other.constant, scalar)


def intern_number(value: Fraction) -> Fraction:
    """Return one object for all equal numbers, so that equal scalars of classes are identical."""
    return _interned_numbers.setdefault(value, value)


def types_of_code(code: int) -> tuple[tuple[Type, ...], bool]:
    """Return the types, and whether static, for which an analysis's code stands."""
    return _types_of_codes[code]


def make_analysis(
    types: tuple[Type, ...], static: bool, constant: Node | None, scalar: Fraction | None
) -> Analysis:
    """Return the analysis with these facts."""
    code = _codes.setdefault((types, static), len(_codes))
    if code == len(_types_of_codes):
        _types_of_codes.append((types, static))
    return Analysis(types, code, static, constant, None if scalar is None else intern_number(scalar))


class AnalysisPair(NamedTuple):
    """The analyses of a class of which only the types are known: if it is not static, and if it is."""

    dynamic: Analysis
    static: Analysis


@cache
def types_only(types: tuple[Type, ...]) -> AnalysisPair:
    """Return the analyses of a class of which only the types are known."""
    return AnalysisPair(make_analysis(types, False, None, None), make_analysis(types, True, None, None))
