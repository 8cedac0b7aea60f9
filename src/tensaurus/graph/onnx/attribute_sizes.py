"""Check that the sizes in a node's attributes can be computed when the model runs.

    Reshape(x, [N * M])      N, M sizes of x or of inputs of the graph: export writes Mul(Shape.., Shape..)
    Reshape(x, [K])          K a size of another value: refused

The importer leaves a node of the second kind opaque, so that every size in a program can be exported
(`ops/size_nodes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from tensaurus.expr.sizes.size import Arithmetic, Floor, Largest, Size, Symbol, polynomial, terms_of
from tensaurus.graph.ir.node import Node
from tensaurus.ops import Untypable


def require_computable_sizes(node: Node, input_symbols: Set[Symbol]) -> None:
    """Raise Untypable unless the sizes in the node's attributes follow from sizes that are known at run time.

    Known are the sizes of the node's arguments, and `input_symbols`, the sizes of the graph's inputs.  Other
    sizes follow by sums, products, quotients and maxima.
    """
    symbolic_sizes = list(_symbolic_sizes(node.attrs))
    if not symbolic_sizes:
        return
    dimensions = {polynomial(n) for arg in node.args if arg is not None for n in arg.tensor.shape}

    def require(size: Size) -> None:
        if polynomial(size) in dimensions:
            return
        for atom in (atom for factors, _ in terms_of(size) for atom in factors):
            if polynomial(atom) in dimensions or isinstance(atom, Symbol) and atom in input_symbols:
                continue
            if isinstance(atom, Floor):
                require(atom.top)
                require(atom.bottom)
            elif isinstance(atom, Largest):
                for arg in atom.args:
                    require(arg)
            else:
                raise Untypable(f"the size {atom} is known only at run time")

    for size in symbolic_sizes:
        require(size)


def _symbolic_sizes(value: Any) -> Iterator[Any]:
    """Yield every symbolic size in an attribute."""
    if isinstance(value, Arithmetic):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _symbolic_sizes(part)
