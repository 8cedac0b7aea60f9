"""Nodes of a program: operators applied to nodes, immutable and interned.

Two equal nodes are one object, so that `is` compares whole expressions; this holds inside one process.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from tensaurus.expr.ir.scope import Scope, Tensor
from tensaurus.graph.ir.tensor_data import TensorData
from tensaurus.ops import Op, TensorType, Untypable


@dataclass(frozen=True)
class OtherType:
    """The type of a value that is no tensor of known rank: a sequence, an optional, a tensor without a shape.

    `proto` is the serialised TypeProto, empty where the model does not state any type.
    """

    proto: bytes = b""

    def __str__(self) -> str:
        return f"other[{hashlib.blake2b(self.proto, digest_size=6).hexdigest()}]" if self.proto else "other[]"


Type: TypeAlias = TensorType | OtherType


@dataclass(frozen=True)
class Leaf:
    """The operator of a node that no declaration gives an expression; there are four, listed below."""

    name: str

    def __repr__(self) -> str:
        return self.name


INPUT = Leaf("input")  # of a program; attribute `name`
CONSTANT = Leaf("constant")  # attribute `data` (`TensorData`)
OPAQUE = Leaf("opaque")  # kept as ONNX states it; attribute `form` (`OpaqueForm`)
ITEM = Leaf("item")  # one output of a node that has several; attribute `index`


class Node:
    """An operator applied to nodes.  Build nodes with `apply`, `constant`, `source`, `item` and `opaque`.

    args    arguments; an optional input that is absent is None
    types   one for each output; most nodes have one output
    static  whether the node depends on constants alone: it is then computed ahead of time, free at run time
    serial  number of creation: arguments have smaller numbers than the nodes that read them
    """

    __slots__ = ("op", "args", "attrs", "types", "static", "serial", "__weakref__")

    op: Op | Leaf
    args: tuple[Node | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    types: tuple[Type, ...]
    static: bool
    serial: int

    @property
    def type(self) -> Type:
        """Return the type of the only output.  Raises ValueError where there are several."""
        if len(self.types) != 1:
            raise ValueError(f"{self.op} has {len(self.types)} outputs")
        return self.types[0]

    @property
    def tensor(self) -> TensorType:
        """Return the type of the only output.  Raises Untypable where it is no tensor of known rank."""
        if not isinstance(self.type, TensorType):
            raise Untypable(f"{self.op} yields no tensor of known rank")
        return self.type

    def arg_types(self) -> tuple[TensorType | None, ...]:
        """Return the types of the arguments as declarations take them, None for an absent argument.

        Raises Untypable where an argument is no tensor of known rank.
        """
        return tuple(None if arg is None else arg.tensor for arg in self.args)

    def scopes(self) -> tuple[Scope, ...]:
        """Return the expression of each output of a declared node.  Raises Untypable."""
        assert isinstance(self.op, Op)
        return self.op.scopes(self.arg_types(), self.attrs)

    def tensor_args(self) -> dict[Tensor, Node]:
        """Return the argument for each tensor in the expressions of a declared node.  Raises Untypable."""
        assert isinstance(self.op, Op)
        pairs = zip(self.op.tensors(self.arg_types()), self.args, strict=False)
        return {tensor: arg for tensor, arg in pairs if tensor is not None and arg is not None}

    @property
    def owner(self) -> tuple[Node, int]:
        """Return the node that computes this value and the number of its output: of an item its argument."""
        if self.op is not ITEM:
            return self, 0
        assert self.args[0] is not None
        return self.args[0], self.attribute("index")

    def __getitem__(self, index: int) -> Node:
        return item(self, index)

    def attribute(self, name: str) -> Any:
        """Return the value of an attribute.  Raises KeyError where the node has none of this name."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def identity(self) -> int | None:
        """Return the unique number of a node with effects or randomness, which equals no other; else None."""
        return next((value for key, value in self.attrs if key == "identity"), None)

    @property
    def is_declared(self) -> bool:
        """Return whether the operator is declared, and thus has an expression."""
        return isinstance(self.op, Op)

    def __repr__(self) -> str:
        return f"<{self.op} {', '.join(map(str, self.types))}>"


_nodes: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
_serials = itertools.count()
_identities = itertools.count(1)


def _intern(
    op: Op | Leaf, args: tuple[Node | None, ...], attrs: tuple[tuple[str, Any], ...], types: tuple[Type, ...]
) -> Node:
    key = (op if isinstance(op, Leaf) else op.name, args, attrs, types)
    node = _nodes.get(key)
    if node is None:
        node = Node()
        node.op, node.args, node.attrs, node.types = op, args, attrs, types
        node.static = op is CONSTANT or (
            (isinstance(op, Op) and not op.is_never_folded or op is ITEM)
            and all(a is None or a.static for a in args)
        )
        node.serial = next(_serials)
        _nodes[key] = node
    return node


def apply(
    op: Op, args: Sequence[Node | None], attrs: Mapping[str, Any] | None = None, outputs: int = 1
) -> Node:
    """Return the operator applied to arguments, with the first `outputs` outputs (0 for all).

    Raises Untypable where the operator does not accept the arguments' types or the attributes.
    """
    inputs = list(args)
    while inputs and inputs[-1] is None:
        inputs.pop()
    kinds = tuple(None if a is None else a.tensor for a in inputs)
    canonical = op.canonical(kinds, attrs or {})
    types = op.types(kinds, canonical)
    if outputs > len(types):
        raise Untypable(f"{op.name} has {len(types)} outputs here, not {outputs}")
    return _intern(op, tuple(inputs), canonical, types[: outputs or None])


def replace_args(node: Node, args: tuple[Node | None, ...]) -> Node:
    """Return the node with other arguments.  Its types are inferred again where those of arguments differ."""
    if args == node.args:
        return node
    if isinstance(node.op, Op):
        has_same_types = all(
            a is b or (a is not None and b is not None and a.types == b.types)
            for a, b in zip(args, node.args, strict=True)
        )
        if has_same_types:
            return _intern(node.op, args, node.attrs, node.types)
        return apply(node.op, args, dict(node.attrs), len(node.types))
    if node.op is ITEM:
        assert args[0] is not None
        return item(args[0], node.attribute("index"))
    return _intern(node.op, args, node.attrs, node.types)


def source(name: str, type: Type) -> Node:
    """Return a named input of a program."""
    return _intern(INPUT, (), (("name", name),), (type,))


def constant(value: TensorData | np.ndarray[Any, Any]) -> Node:
    """Return a constant tensor."""
    data = value if isinstance(value, TensorData) else TensorData(value)
    return _intern(CONSTANT, (), (("data", data),), (TensorType(data.dtype, data.shape),))


def item(node: Node, index: int) -> Node:
    """Return one output of a node; the node itself where it has a single output."""
    if len(node.types) == 1 and index == 0:
        return node
    return _intern(ITEM, (node,), (("index", index),), (node.types[index],))


def opaque(
    form: Any,
    args: Sequence[Node | None],
    types: Sequence[Type],
    effects: bool = False,
    identity: int | None = None,
) -> Node:
    """Return a node that no rewrite may touch, as its operator is unknown or could not be typed.

    A node with `effects` (or randomness) equals no other; `identity` restores its number when it is rebuilt.
    """
    attrs: tuple[tuple[str, Any], ...] = (("form", form),)
    if effects or identity is not None:
        attrs = (*attrs, ("identity", next(_identities) if identity is None else identity))
    return _intern(OPAQUE, tuple(args), attrs, tuple(types))
