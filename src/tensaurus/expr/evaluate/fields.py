"""The fields in which an expression can be evaluated.

Float tensors hold elements of the field; integer and bool tensors hold int64 and bool in every field,
integers as `expr.ir.integer_types` says.  In every field but the reals 1/0 is 0, so that a / b is always
a * (1 / b).

`Reals` is float64.  `PrimeField` is GF(2^31-1): an identity of polynomials of total degree d that holds at a
random point is false with probability at most d/p (Schwartz-Zippel).  `Rationals` are exact fractions, with
their order.  `Polynomials` are exact, `Z3Terms` are terms of the solver.  A function that a field lacks is
there an unknown function of its arguments (`unknown`): equal for equal arguments.
"""

from tensaurus.expr.evaluate.exact_fields import ExactField, Polynomials, Rationals, UnknownCall, Z3Terms
from tensaurus.expr.evaluate.field_protocol import Array, Field, Reals
from tensaurus.expr.evaluate.prime_field import P, PrimeField

__all__ = [
    "UnknownCall",
    "Array",
    "ExactField",
    "Field",
    "P",
    "PrimeField",
    "Rationals",
    "Reals",
    "Polynomials",
    "Z3Terms",
]
