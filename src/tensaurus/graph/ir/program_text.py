"""Write programs as text, and parse that text: one node a line, arguments first.

    program  ::=  line ...
    line     ::=  symbol('N', 1)                      each symbolic size, with its least value
               |  n0 = input('x') -> type             in order; `captured` where a body reads it from outside,
                                                      `source` where the program's lists lack it
               |  n1 = constant(type, number, ...)    up to 8 numbers
               |  n2 = constant(type, '5f0c...')      the digest of more numbers, which are in the table
               |  n3 = Conv(n0, n1, None, group=1, ...) -> type, ...
               |  n3 = eop(n0, n1, scope='L[...](...)') -> type      an expression is quoted
               |  n4 = n3[1]                          one output of several
               |  n5 = opaque('Op', '91d3...', n0) -> type      the digest of its form, which is in the table
               |  output('y', n4)
    type     ::=  float32[2, N, (N + 1) // 2]  |  other('0a02...')

A line is a Python expression, parsed by Python's own grammar and never run.  Texts are exact:
`parse_program(format_program(program), digest_table(program)) == program`, and every node is the same
object.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from fractions import Fraction
from math import inf, isnan, nan, prod
from typing import Any

import numpy as np

from tensaurus.expr.ir.expression_text import parse_size, show_size
from tensaurus.expr.ir.expression_text import show as show_scope
from tensaurus.expr.ir.scope import Scope
from tensaurus.expr.sizes.size import Arithmetic, Symbol, atoms, polynomial
from tensaurus.graph.ir.node import (
    CONSTANT,
    INPUT,
    ITEM,
    OPAQUE,
    Node,
    OtherType,
    Type,
    apply,
    constant,
    item,
    opaque,
    source,
)
from tensaurus.graph.ir.opaque import OpaqueForm
from tensaurus.graph.ir.program import Program, topological_order
from tensaurus.graph.ir.subnormal import subnormal_rarity
from tensaurus.graph.ir.tensor_data import TensorData, numpy_dtype
from tensaurus.ops import TensorType, registry
from tensaurus.system.syntax import parse_expression, parse_statements

MAX_INLINE_NUMBERS = 8  # a constant with more numbers is written as its digest, to keep texts short

_INLINE_DTYPES = {
    "bool": bool,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": float for bits in (16, 32, 64)},
}


def format_program(program: Program) -> str:
    """Return the text of a program.  Equal programs have equal texts."""
    order = [*program.inputs, *program.captured]
    order += [node for node in topological_order([n for _, n in program.outputs]) if node not in set(order)]
    names = {node: f"n{k}" for k, node in enumerate(order)}
    symbols: set[Symbol] = set()
    lines = []
    for k, node in enumerate(order):
        for kind in node.types:
            if isinstance(kind, TensorType):
                symbols.update(s for n in kind.shape for s in _symbols(n))
        for _, value in node.attrs:
            symbols.update(_symbols(value))
        if node.op is INPUT:
            # `order` begins with the inputs, then the captured ones; a later INPUT is in neither list
            where = "input" if k < len(program.inputs) else "captured"
            where = where if k < len(program.inputs) + len(program.captured) else "source"
            type_text = format_type(node.types[0])
            lines.append(f"{names[node]} = {where}({node.attribute('name')!r}) -> {type_text}")
        elif node.op is CONSTANT:
            lines.append(f"{names[node]} = constant({_format_data(node.attribute('data'))})")
        elif node.op is ITEM:
            assert node.args[0] is not None
            lines.append(f"{names[node]} = {names[node.args[0]]}[{node.attribute('index')}]")
        else:
            args = ["None" if a is None else names[a] for a in node.args]
            lines.append(f"{names[node]} = {_format_call(node, args)}")
    lines += [f"output({name!r}, {names[node]})" for name, node in program.outputs]
    header = [f"symbol({s.name!r}, {s.low})" for s in sorted(symbols, key=lambda s: (s.name, s.low))]
    return "\n".join([*header, *lines]) + "\n"


def digest_table(program: Program) -> dict[str, TensorData | OpaqueForm]:
    """Return what the text of a program holds as digests: elements of constants and forms of opaque nodes."""
    entries: dict[str, TensorData | OpaqueForm] = {}
    for node in program.nodes:
        if node.op is CONSTANT:
            data: TensorData = node.attribute("data")
            if _inline_numbers(data) is None:
                entries[data.digest.hex()] = data
        elif node.op is OPAQUE:
            form: OpaqueForm = node.attribute("form")
            entries[form_digest(form)] = form
    return entries


def workload(node: Node, ignore_values: bool = False) -> str:
    """Return an operator with attributes and types of arguments: the key of its measured times.

    Conv(float32[1, 3, 8, 8], const float32[6, 3, 3, 3], dilations=(1, 1), ...) -> float32[1, 6, 6, 6]

    `const` marks constant arguments, which a runtime prepares ahead of time.  Their values make no
    difference, except subnormal numbers, which are slow (`const subnormal 2^-3`; `ignore_values` leaves this
    out).  `same k` is an argument that is the same as argument k.
    """
    args: list[str] = []
    for k, arg in enumerate(node.args):
        if arg is None:
            args.append("None")
        elif arg in node.args[:k]:
            args.append(f"same {node.args.index(arg)}")
        else:
            kinds = ", ".join(map(format_type, arg.types))
            values = "" if ignore_values or not arg.static else format_subnormals(arg)
            args.append(f"const {values}{kinds}" if arg.static else kinds)
    return _format_call(node, args)


def format_subnormals(leaf: Node) -> str:
    """Return "subnormal 2^-k " for a constant of which 1 in 2^k elements is subnormal, "" where few are."""
    rarity = subnormal_rarity(leaf.attribute("data")) if leaf.op is CONSTANT else -1
    return "" if rarity < 0 else f"subnormal 2^-{rarity} "


def form_digest(form: OpaqueForm) -> str:
    """Return a hash of the operator, attributes and bodies of an opaque node."""
    state = hashlib.blake2b(form.node, digest_size=16)
    state.update(f"{form.inputs} {form.outputs}".encode())
    for name, body in form.bodies:
        state.update(f"\n{name}\n{format_program(body)}".encode())
    return state.hexdigest()


def _format_call(node: Node, args: list[str]) -> str:
    """Return the call of an operator with the types of its outputs."""
    texts = list(args)
    if node.op is OPAQUE:
        form: OpaqueForm = node.attribute("form")
        name, texts = "opaque", [repr(form.operator), repr(form_digest(form)), *texts]
        texts += [f"identity={value}" for key, value in node.attrs if key == "identity"]
    else:
        name = str(node.op.name)
        texts += [f"{key}={format_attribute(value)}" for key, value in node.attrs]
    return f"{name}({', '.join(texts)}) -> {', '.join(map(format_type, node.types))}"


def format_type(kind: Type) -> str:
    """Return the text of a type, such as float32[2, N]."""
    if isinstance(kind, OtherType):
        return f"other({kind.proto.hex()!r})"
    return f"{kind.dtype}[{', '.join(show_size(n, {}) for n in kind.shape) or '()'}]"


def format_attribute(value: Any) -> str:
    """Return the text of an attribute, which `parse_program` reads back exactly."""
    if isinstance(value, tuple):
        return f"({', '.join(map(format_attribute, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Arithmetic):
        return f"size({show_size(value, {})})"
    if isinstance(value, Scope):
        return repr(show_scope(value))  # over the arguments, whose types say what its tensors are
    if isinstance(value, bool):  # True is 1 to Python, and to equal nodes
        value = int(value)
    return str(value) if isinstance(value, Fraction) else repr(value)


def _symbols(value: Any) -> set[Symbol]:
    if isinstance(value, tuple):
        return {s for part in value for s in _symbols(part)}
    return {a for a in atoms(value) if isinstance(a, Symbol)} if isinstance(value, Arithmetic) else set()


def _inline_numbers(data: TensorData) -> list[Any] | None:
    """Return the elements to write in the text, None where they are many or their text is not exact."""
    if data.dtype not in _INLINE_DTYPES or prod(data.shape) > MAX_INLINE_NUMBERS:
        return None
    numbers = data.array.ravel().tolist()
    return None if any(isnan(x) for x in numbers) else numbers


def _format_data(data: TensorData) -> str:
    numbers = _inline_numbers(data)
    content = [repr(data.digest.hex())] if numbers is None else map(repr, numbers)
    return ", ".join([format_type(TensorType(data.dtype, data.shape)), *content])


# ---------------------------------------------------------------------------------------- parsing


def parse_program(text: str, table: Mapping[str, TensorData | OpaqueForm] | None = None) -> Program:
    """Return the program with this text; its nodes are typed again.  Raises ValueError naming the line."""
    reader = _Parser(table or {})
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                reader.line(line)
            except (ValueError, KeyError, SyntaxError, RecursionError, IndexError, TypeError) as error:
                raise ValueError(f"line {number}: {line.strip()[:120]}: {error}") from error
    return Program(tuple(reader.inputs), tuple(reader.outputs), tuple(reader.captured))


class _Parser:
    """Parses line by line; `nodes` and `symbols` hold the names that the lines so far defined."""

    def __init__(self, table: Mapping[str, TensorData | OpaqueForm]):
        self.table = table
        self.nodes: dict[str, Node] = {}
        self.symbols: dict[str, Any] = {}
        self.inputs: list[Node] = []
        self.captured: list[Node] = []
        self.outputs: list[tuple[str, Node]] = []

    def line(self, line: str) -> None:
        head, _, types = line.rpartition(" -> ")
        if not head or line.startswith("output("):
            head, types = line, ""
        statement = parse_statements(head.strip())
        kinds = tuple(map(self.type, _items(_expression(types)))) if types else ()
        match statement:
            case [ast.Expr(ast.Call(func=ast.Name(id="symbol"), args=[ast.Constant(str(name)), least]))]:
                self.symbols[name] = polynomial(Symbol(name, ast.literal_eval(least)))
            case [ast.Expr(ast.Call(func=ast.Name(id="output"), args=[ast.Constant(str(name)), node]))]:
                self.outputs.append((name, self.node(node)))
            case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
                if name in self.nodes:
                    raise ValueError(f"{name} is defined twice")
                self.nodes[name] = self.build_node(value, kinds)
            case _:
                raise ValueError("the line is no symbol, node or output")

    def build_node(self, value: ast.expr, kinds: tuple[Type, ...]) -> Node:
        match value:
            case ast.Subscript(value=owner, slice=ast.Constant(int(index))):
                return item(self.node(owner), index)
            case ast.Call(func=ast.Name(id="input" | "captured" | "source" as where), args=[name]):
                node = source(ast.literal_eval(name), *kinds)
                if where != "source":
                    (self.inputs if where == "input" else self.captured).append(node)
                return node
            case ast.Call(func=ast.Name(id="constant"), args=[kind, *content]):
                return constant(self.data(self.type(kind), [self.value(c) for c in content]))
            case ast.Call(func=ast.Name(id="opaque"), args=[_, name, *args], keywords=keywords):
                form = self.table[ast.literal_eval(name)]
                assert isinstance(form, OpaqueForm)
                identity = next((self.value(k.value) for k in keywords), None)
                return opaque(form, [self.argument(a) for a in args], kinds, identity=identity)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                attrs = {str(k.arg): self.value(k.value) for k in keywords}
                node = apply(registry[name], [self.argument(a) for a in args], attrs, len(kinds) or 1)
                if kinds and node.types != kinds:
                    raise ValueError(f"its type is {', '.join(map(format_type, node.types))}")
                return node
        raise ValueError(f"{ast.unparse(value)} is no node")

    def node(self, name: ast.expr) -> Node:
        if not isinstance(name, ast.Name):
            raise ValueError(f"{ast.unparse(name)} is no name of a node")
        return self.nodes[name.id]

    def argument(self, name: ast.expr) -> Node | None:
        return None if isinstance(name, ast.Constant) and name.value is None else self.node(name)

    def type(self, kind: ast.expr) -> Type:
        match kind:
            case ast.Call(func=ast.Name(id="other"), args=[ast.Constant(str(proto))]):
                return OtherType(bytes.fromhex(proto))
            case ast.Subscript(value=ast.Name(id=dtype), slice=shape):
                numpy_dtype(dtype)
                return TensorType(dtype, tuple(map(self.size, _items(shape))))
        raise ValueError(f"{ast.unparse(kind)} is no type")

    def size(self, size: ast.expr) -> Any:
        return parse_size(ast.unparse(size), self.symbols)

    def data(self, kind: Type, content: list[Any]) -> TensorData:
        assert isinstance(kind, TensorType)
        if len(content) == 1 and isinstance(content[0], str):
            data = self.table[content[0]]
            assert isinstance(data, TensorData)
            return data
        numbers = [float(x) if kind.dtype.startswith("float") else x for x in content]
        return TensorData(np.array(numbers, numpy_dtype(kind.dtype)).reshape(kind.shape))

    def value(self, value: ast.expr) -> Any:
        """Return the value of an attribute."""
        match value:
            case ast.Tuple(elts=parts):
                return tuple(map(self.value, parts))
            case ast.Call(func=ast.Name(id="size"), args=[size]):
                return self.size(size)
            case ast.Name(id="inf" | "nan" as name):
                return inf if name == "inf" else nan
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.value(inner)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return Fraction(self.value(left)) / self.value(right)
            case ast.Constant(value=literal):
                return literal
        raise ValueError(f"{ast.unparse(value)} is no attribute")


def _expression(text: str) -> ast.expr:
    return parse_expression(text.strip())


def _items(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]
