"""What is known of each e-class beside its e-nodes: egg's e-class analysis (POPL'21, section 4)."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from tensaurus.graph.ir.node import Node, Type
from tensaurus.ops import TensorType
from tensaurus.rules.language.match import filled_value

__all__ = ["Analysis", "analysed", "coded", "interned", "typed"]

# Of types and numbers there are few: all e-graphs share them.
_codes: dict[tuple[tuple[Type, ...], bool], int] = {}
_coded: list[tuple[tuple[Type, ...], bool]] = []  # by code
_contents: dict[tuple[int, Fraction | None, Fraction | None, bool], int] = {}
_numbers: dict[Fraction, Fraction] = {}


class Analysis:
    """What is known of a class: types of its outputs, and whether it depends on constants alone.

    `constant` is a node of known elements in it, `scalar` its value where there is just one element; `code`
    is a number for the types and for `static`.
    """

    __slots__ = ("types", "code", "static", "constant", "scalar", "_content", "_filled", "_positive")

    def __init__(
        self, types: tuple[Type, ...], code: int, static: bool, constant: Node | None, scalar: Fraction | None
    ):
        self.types, self.code, self.static, self.constant, self.scalar = types, code, static, constant, scalar
        self._content: int | None = None
        self._positive: bool | None = None
        self._filled: tuple[Fraction | None] | None = None

    @property
    def tensor(self) -> TensorType | None:
        """The type of the only output, if it is a tensor."""
        only = self.types[0] if len(self.types) == 1 else None
        return only if isinstance(only, TensorType) else None

    @property
    def positive(self) -> bool:
        """True for a constant whose elements are all known to be above zero."""
        if self._positive is None:
            node = self.constant
            self._positive = node is not None and bool((node.attribute("data").array > 0).all())
        return self._positive

    @property
    def filled(self) -> Fraction | None:
        """The number that all elements of a constant are."""
        if self._filled is None:
            self._filled = (None if self.constant is None else filled_value(self.constant),)
        return self._filled[0]

    @property
    def content(self) -> int:
        """A number for all that a rule's conditions may ask: for `code`, and for what a constant holds."""
        if self._content is None:
            key = (self.code, self.scalar, self.filled, self.positive)
            self._content = _contents.setdefault(key, len(_contents))
        return self._content

    def join(self, other: Analysis) -> Analysis:
        """What is known of a class that two became; raises ValueError where their types differ."""
        if self.types != other.types:
            raise ValueError(f"a union of {self.types} and {other.types}")
        scalar = self.scalar if self.scalar is not None else other.scalar
        return analysed(self.types, self.static or other.static, self.constant or other.constant, scalar)


def interned(value: Fraction) -> Fraction:
    """The one object for this number: equal scalars of classes are identical."""
    return _numbers.setdefault(value, value)


def coded(code: int) -> tuple[tuple[Type, ...], bool]:
    """The types, and whether static, that an analysis's code stands for."""
    return _coded[code]


def analysed(
    types: tuple[Type, ...], static: bool, constant: Node | None, scalar: Fraction | None
) -> Analysis:
    """What is known of a class."""
    code = _codes.setdefault((types, static), len(_codes))
    if code == len(_coded):
        _coded.append((types, static))
    return Analysis(types, code, static, constant, None if scalar is None else interned(scalar))


@cache
def typed(types: tuple[Type, ...]) -> tuple[Analysis, Analysis]:
    """What is known of a class by its types alone: where it depends on inputs, and where it does not."""
    return analysed(types, False, None, None), analysed(types, True, None, None)
