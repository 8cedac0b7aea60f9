"""Declare an operator by one function that returns its expression.

    @op("Add", since=7, examples=["f32[2,3] f32[3]"])
    def add(a, b):
        return broadcast(lambda x, y: x + y, a, b)

Positional parameters are the inputs (default None: optional; *xs: variadic), keyword-only parameters are the
attributes with their defaults.  Some attributes are inputs in ONNX (*static inputs*, such as the shape of a
Reshape): such a node is only typed where the value is known.  Shapes, dtypes, evaluation, FLOPs, linearity,
import, export and tests are computed from the declaration.  Callers first bring attributes into one form:

    attrs = op.canonical(types, {"axis": -1})    every attribute, defaults filled in, the axis from the front
    op.types(types, attrs), op.scopes(types, attrs)    of each output; these raise Untypable
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tensaurus.expr.ir.element_types import Untypable as Untypable
from tensaurus.expr.ir.element_types import dtype_of
from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.expr.sizes.open_questions import CacheByAnswers, forget_open_questions
from tensaurus.expr.sizes.size import Size

# The element types of expressions; a node with any other type (strings, 8-bit floats) stays opaque.
NUMBERS = frozenset(
    {"bool", "float16", "bfloat16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True)
class TensorType:
    """An element type (by its name in numpy: float32, bool, ...; see `ops.element_type`) and a shape."""

    dtype: str
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        """Whether every size is a number."""
        return all(isinstance(n, int) for n in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


T = TypeVar("T")
Attributes: TypeAlias = tuple[tuple[str, Any], ...]  # sorted by name, values hashable
Argument: TypeAlias = Tensor | None


@dataclass(frozen=True)
class Input:
    """A formal input of an operator."""

    name: str
    is_optional: bool = False
    is_variadic: bool = False


@dataclass(eq=False)
class Op:
    """An operator: its declaration and what is computed from it.

    name        as in ONNX, or our own where ONNX has no such operator (then `domain` is "tensaurus")
    declare     the declaration: takes tensors and attributes, returns the scope, or a tuple of one per output
    since       the first ONNX version for which the declaration holds
    moved       {parameter: version}: an attribute before that version, an input from it on
    before      {version: {attribute: value}}: what older versions imply or default to
    order       the inputs of the newest version, moved attributes included, in ONNX's order
    old_names   {parameter: the name of its attribute before it moved}, where that differs
    outputs     {version: how many of the declared outputs older versions have}
    dtype_inputs   {attribute: the static input whose element type it is}; ONNX has no such attribute
    output_count   the attribute that is the number of a node's outputs where the node does not state it
    is_never_folded   whether it is computed at run time even from constants: its result is larger than its
                inputs, and runtimes look for it in front of its readers
    canonicalize   takes input tensors and all attributes, returns those attributes that change, in the form
                that equal calls share: axis -1 of rank 3 becomes 2
    merge_nested   takes the attributes of a call, a number k, and the attributes of a call on its output k;
                returns the attributes of the one call that replaces both, as of a Split of a part of a Split
    examples    texts of inputs and attributes that tests run
    """

    name: str
    declare: Callable[..., Any]
    since: int = 1
    domain: str = ""
    moved: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    old_names: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    dtype_inputs: Mapping[str, str] = field(default_factory=dict)
    output_count: str | None = None
    is_never_folded: bool = False
    canonicalize: Callable[..., dict[str, Any]] | None = None
    merge_nested: Callable[[dict[str, Any], int, dict[str, Any]], dict[str, Any]] | None = None
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.declare).parameters.values()
        self.inputs = tuple(
            Input(p.name, p.default is None, p.kind is p.VAR_POSITIONAL)
            for p in parameters
            if p.kind is not p.KEYWORD_ONLY
        )
        self.attributes: dict[str, Any] = {
            p.name: attribute_value(p.default) for p in parameters if p.kind is p.KEYWORD_ONLY
        }
        self.before = {
            version: {name: attribute_value(value) for name, value in values.items()}
            for version, values in self.before.items()
        }
        if not self.order:
            self.order = (
                *(i.name for i in self.inputs),
                *(name for name in self.moved if name in self.attributes),
            )
        self._scopes = CacheByAnswers[tuple[Scope, ...] | Untypable](4096)
        self._types = CacheByAnswers[tuple[TensorType, ...] | Untypable](65536)

    def __repr__(self) -> str:
        return self.name

    def has_default(self, attribute: str) -> bool:
        return self.attributes[attribute] is not inspect.Parameter.empty

    @property
    def is_variadic(self) -> bool:
        return any(i.is_variadic for i in self.inputs)

    def tensors(self, types: Sequence[TensorType | None]) -> tuple[Argument, ...]:
        """Return a tensor (None: absent) for each input, named after its parameter: leaves of `scopes`."""
        if not self.is_variadic and len(types) > len(self.inputs):
            raise Untypable(f"{self.name} has {len(self.inputs)} inputs, not {len(types)}")
        required = sum(not i.is_optional and not i.is_variadic for i in self.inputs)
        all_types = [*types, *[None] * (required - len(types))]
        result: list[Argument] = []
        for k, kind in enumerate(all_types):
            formal = self.inputs[min(k, len(self.inputs) - 1)]
            if kind is None and not formal.is_optional:
                raise Untypable(f"{self.name} needs its input {formal.name}")
            if kind is not None and kind.dtype not in NUMBERS:
                raise Untypable(f"{self.name} of {kind.dtype}")
            name = f"{formal.name}{k - len(self.inputs) + 1}" if formal.is_variadic else formal.name
            result.append(None if kind is None else Tensor(name, kind.shape, kind.dtype))
        return tuple(result)

    def canonical(self, types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> Attributes:
        """Return every attribute, defaults filled in, in the one form that `canonicalize` gives.

        Raises Untypable for an attribute that the operator lacks.
        """
        forget_open_questions()  # those of the inputs: as these are typed, no answer was needed
        for name in attrs:
            if name not in self.attributes:
                raise Untypable(f"{self.name} has no attribute {name}")
        full = {**self.attributes, **attrs}
        for name, value in full.items():
            if value is inspect.Parameter.empty:
                raise Untypable(f"{self.name} needs its attribute {name}")
        if self.canonicalize is not None:
            full.update(self.canonicalize(self.tensors(types), full))
        return tuple(sorted((name, hashable(value)) for name, value in full.items()))

    def scopes(self, types: tuple[TensorType | None, ...], attrs: Attributes) -> tuple[Scope, ...]:
        """Return the expression of each output over `tensors(types)`.  Raises Untypable."""
        return _value_or_raise(self._scopes.get((types, attrs), lambda: self._compute_scopes(types, attrs)))

    def types(self, types: tuple[TensorType | None, ...], attrs: Attributes) -> tuple[TensorType, ...]:
        """Return the type of each output.  Raises Untypable."""
        return _value_or_raise(self._types.get((types, attrs), lambda: self._compute_types(types, attrs)))

    def _compute_scopes(
        self, types: tuple[TensorType | None, ...], attrs: Attributes
    ) -> tuple[Scope, ...] | Untypable:
        try:
            result = self.declare(*self.tensors(types), **dict(attrs))
            scopes = result if isinstance(result, tuple) else (result,)
            if any(isinstance(n, int) and n < 0 for scope in scopes for n in scope.shape):
                raise Untypable(f"a size of {[scope.shape for scope in scopes]} is negative")
            return scopes
        except Untypable as error:
            return Untypable(*error.args)  # a new one: the traceback would keep the caller's stack alive

    def _compute_types(
        self, types: tuple[TensorType | None, ...], attrs: Attributes
    ) -> tuple[TensorType, ...] | Untypable:
        scopes = self._scopes.get((types, attrs), lambda: self._compute_scopes(types, attrs))
        if isinstance(scopes, Untypable):
            return scopes
        return tuple(TensorType(dtype_of(scope), scope.shape) for scope in scopes)


def _value_or_raise(result: tuple[T, ...] | Untypable) -> tuple[T, ...]:
    """Return the result, or raise it where it is an error."""
    if isinstance(result, Untypable):
        raise Untypable(*result.args)
    return result


def attribute_value(value: Any) -> Any:
    """Return a literal attribute as ONNX stores it: floats rounded to float32, then exact fractions."""
    if isinstance(value, (list, tuple)):
        return tuple(map(attribute_value, value))
    return hashable(float(np.float32(value))) if isinstance(value, float) else hashable(value)


def hashable(value: Any) -> Any:
    """Return an attribute in hashable form: lists as tuples, finite floats as fractions or ints."""
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        value = Fraction(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return value


registry: dict[str, Op] = {}


def op(name: str, **options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Return a decorator that registers a function as the declaration of operator `name`."""

    def register(declare: Callable[..., Any]) -> Op:
        if name in registry:
            raise ValueError(f"operator {name} is declared twice")
        for key in ("examples", "order"):
            if key in options:
                options[key] = tuple(options[key])
        registry[name] = Op(name, declare, **options)
        return registry[name]

    return register
