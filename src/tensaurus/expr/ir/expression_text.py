"""Write expressions as text, and read them back.

    scope  ::=  L[i:extent, ...](body)                     one element per point of the axes; L[()] has rank 0
    body   ::=  size | rational | inf | -inf | nan | True | False
             |  source[index, ...]  |  source[index, ...] | outside          x[()] reads a tensor of rank 0
             |  fn(body, ...)                               add, mul, max, min, and, or may take more than two
             |  body if size >= 0 and ... else body
             |  sum[r:extent, ...](body)                    or max, min, prod
             |  size(size)                                  a size whose text would begin like a function
    source ::=  tensor | scope | [number, ...] | [[number, ...], ...]       nested lists are a literal table
             |  (A := scope) | A                            one that is read twice is written once, named A
    size   ::=  integers, symbols and axes under  + - * // %,  max(size, ...), min(size, ...),
                look(read, low, high)                       an index read from an integer tensor
                symbol(N, low), symbol(N, low, high)        bounds that the shapes of the tensors do not state

It is a subset of Python's expressions, parsed by Python's own grammar and never run.  Names that are not
identifiers stand in quotes; `and`, `or`, `not` are written `and_`, `or_`, `not_`.

    L[i:3, j:N](sum[r:3](mul(x[i + r - 1, j] | 0, w[r])))

Axes are named in order of appearance (i, j, k... and r, s, t... for reduced ones), whatever their own names
are, so alpha-equal expressions have equal texts.  Texts are exact: `show(parse(show(s), ...)) == show(s)`.
"""

from tensaurus.expr.ir.parser import parse, parse_declarations, parse_size
from tensaurus.expr.ir.printer import declarations, show, show_size

__all__ = ["declarations", "parse", "parse_declarations", "parse_size", "show", "show_size"]
