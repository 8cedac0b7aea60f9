"""What it takes to declare an operator: one function that returns its expression.

    @op("Add", since=7, examples=["f32[2,3] f32[3]"])
    def add(a, b):
        return broadcast(lambda x, y: x + y, a, b)

Positional parameters are the inputs (default None: optional; *xs: variadic), keyword-only parameters are
the attributes with their defaults.  Shapes, dtypes, evaluation, FLOPs, linearity, import, export and tests
are computed from the declaration.
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

# The element types that expressions compute with; any other (strings, 8-bit floats) leaves a node opaque.
NUMBERS = frozenset(
    {"bool", "float16", "bfloat16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True)
class TensorType:
    """Element type (an ONNX name in lower case: float32, int64, bool, ...) and shape."""

    dtype: str
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        """True where every size is a number."""
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
    optional: bool = False
    variadic: bool = False


@dataclass(eq=False)
class Op:
    """An operator: its declaration and what follows from it.

    name        as in ONNX, or our own where ONNX has no such operator (then `domain` is "tensaurus")
    since       the first ONNX version for which the declaration holds
    moved       {parameter: version}: an attribute before that version, an input from it on
    before      {version: {attribute: value}}: what older versions imply or default to
    order       the inputs of the newest version, moved attributes included, in ONNX's order
    formerly    {parameter: the name of its attribute before it moved}, where that differs
    outputs     {version: how many of the declared outputs older versions have}
    carried     {attribute: the static input whose element type it is}; ONNX has no such attribute
    counted     the attribute that is the number of a node's outputs where the node does not say it
    kept        computed at run time even from constants: what it makes is larger than what it reads, and
                runtimes look for it in front of what reads it
    normal      brings attributes to one form, given the input types (fills defaults, drops redundant ones)
    nested      attributes of the one call that a call on an output of another is, from those of the other,
                the output's place, and those of the call on it
    examples    texts of inputs and attributes that tests run
    """

    name: str
    declare: Callable[..., Any]
    since: int = 1
    domain: str = ""
    moved: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    formerly: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    counted: str | None = None
    kept: bool = False
    normal: Callable[..., dict[str, Any]] | None = None
    nested: Callable[[dict[str, Any], int, dict[str, Any]], dict[str, Any]] | None = None
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
    def variadic(self) -> bool:
        return any(i.variadic for i in self.inputs)

    def tensors(self, types: Sequence[TensorType | None]) -> tuple[Argument, ...]:
        """The leaves of `scopes` for the inputs, named after the parameters (`xs0`, `xs1`, ...)."""
        if not self.variadic and len(types) > len(self.inputs):
            raise Untypable(f"{self.name} has {len(self.inputs)} inputs, not {len(types)}")
        required = sum(not i.optional and not i.variadic for i in self.inputs)
        padded = [*types, *[None] * (required - len(types))]
        result: list[Argument] = []
        for place, kind in enumerate(padded):
            formal = self.inputs[min(place, len(self.inputs) - 1)]
            if kind is None and not formal.optional:
                raise Untypable(f"{self.name} needs its input {formal.name}")
            if kind is not None and kind.dtype not in NUMBERS:
                raise Untypable(f"{self.name} of {kind.dtype}")
            name = f"{formal.name}{place - len(self.inputs) + 1}" if formal.variadic else formal.name
            result.append(None if kind is None else Tensor(name, kind.shape, kind.dtype))
        return tuple(result)

    def canonical(self, types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> Attributes:
        """Every attribute, defaults filled in, in the one form that `normal` gives it.

        Raises Untypable for an attribute that the operator lacks.
        """
        forget_open_questions()
        for name in attrs:
            if name not in self.attributes:
                raise Untypable(f"{self.name} has no attribute {name}")
        full = {**self.attributes, **attrs}
        for name, value in full.items():
            if value is inspect.Parameter.empty:
                raise Untypable(f"{self.name} needs its attribute {name}")
        if self.normal is not None:
            full.update(self.normal(self.tensors(types), full))
        return tuple(sorted((name, hashable(value)) for name, value in full.items()))

    def scopes(self, types: tuple[TensorType | None, ...], attrs: Attributes) -> tuple[Scope, ...]:
        """The expression of each output over `tensors(types)`; attrs in canonical form.  Raises Untypable."""
        return _made(self._scopes.get((types, attrs), lambda: self._declared(types, attrs)))

    def types(self, types: tuple[TensorType | None, ...], attrs: Attributes) -> tuple[TensorType, ...]:
        """The type of each output.  Raises Untypable."""
        return _made(self._types.get((types, attrs), lambda: self._typed(types, attrs)))

    def _declared(
        self, types: tuple[TensorType | None, ...], attrs: Attributes
    ) -> tuple[Scope, ...] | Untypable:
        try:
            result = self.declare(*self.tensors(types), **dict(attrs))
            scopes = result if isinstance(result, tuple) else (result,)
            if any(isinstance(n, int) and n < 0 for scope in scopes for n in scope.shape):
                raise Untypable(f"a size of {[scope.shape for scope in scopes]} is negative")
            return scopes
        except Untypable as error:
            return Untypable(*error.args)  # a traceback would keep the caller's whole stack alive

    def _typed(
        self, types: tuple[TensorType | None, ...], attrs: Attributes
    ) -> tuple[TensorType, ...] | Untypable:
        scopes = self._scopes.get((types, attrs), lambda: self._declared(types, attrs))
        if isinstance(scopes, Untypable):
            return scopes
        return tuple(TensorType(dtype_of(scope), scope.shape) for scope in scopes)


def _made(result: tuple[T, ...] | Untypable) -> tuple[T, ...]:
    """Raises what it is, where nothing was made."""
    if isinstance(result, Untypable):
        raise Untypable(*result.args)
    return result


def attribute_value(value: Any) -> Any:
    """A literal attribute as ONNX stores it: floats are rounded to float32, then exact."""
    if isinstance(value, (list, tuple)):
        return tuple(map(attribute_value, value))
    return hashable(float(np.float32(value))) if isinstance(value, float) else hashable(value)


def hashable(value: Any) -> Any:
    """An attribute in its hashable form: lists as tuples, finite floats exact, whole ones as ints."""
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        value = Fraction(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return value


registry: dict[str, Op] = {}


def op(name: str, **options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Register the decorated function as the declaration of operator `name`."""

    def register(declare: Callable[..., Any]) -> Op:
        if name in registry:
            raise ValueError(f"operator {name} is declared twice")
        for key in ("examples", "order"):
            if key in options:
                options[key] = tuple(options[key])
        registry[name] = Op(name, declare, **options)
        return registry[name]

    return register
