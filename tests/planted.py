"""Laws with branches planted in them: right on one side of an `if`, wrong on the other.

A question (of sizes, ranks, element types, numbers of attributes, constants) stands in an attribute of the
left or the right side, in a shape, or in a condition, alone or with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from tensaurus.rules.language.side_conditions import Fact, holds
from tensaurus.rules.language.term import parse_expression

# questions of a matrix x, each of which is answered by yes at some sizes and by no at others
SIZES = (
    "dim(x, 0) <= 8",
    "dim(x, 1) < 5",
    "dim(x, 0) > 11",
    "8 >= dim(x, 0)",
    "dim(x, 0) == 7",
    "dim(x, 0) != 6",
    "dim(x, 0) == dim(x, 1)",
    "dim(x, 0) < dim(x, 1)",
    "dim(x, 0) - 3",
    "not dim(x, 1) - 1",
    "numel(x) > 100",
    "prod(shape(x)) == 36",
    "sum(shape(x)) <= 20",
    "max(shape(x)) <= 12",
    "min(shape(x)) > 3",
    "dim(x, 0) % 4 == 1",
    "dim(x, 0) % 2",
    "dim(x, 0) // 6 == 2",
    "dim(x, 0) in (3, 5)",
    "dim(x, 0) not in (4, 9)",
    "4 < dim(x, 0) < 9",
    "len(set(shape(x))) == 2",
    "set(shape(x)) == set((4, 9))",
    "index(shape(x), dim(x, 1)) == 1",
    "at_least(dim(x, 0), 9)",
    "all(n <= 8 for n in shape(x))",
    "any(n == 1 for n in shape(x))",
    "all([n - 2 for n in shape(x)])",
    "shape(x) == (5, 6)",
    "(dim(x, 0), 1) == (dim(x, 1), 1)",
    "dim(x, 0) == dim(x, 1) * 2",
    "dim(x, 0) * dim(x, 0) > 50",
)
JOINED = (
    "({0}) and ({1})",
    "({0}) or ({1})",
    "not ({0}) and not ({1})",
    "not (({0}) or not ({1}))",
    "(0 if {0} else 1) == (1 if {1} else 0)",
    "(({1}) if ({0}) else not ({1}))",
    "len(tuple(i for i in (0, 1) if ({0}) or ({1}) and i)) == 1",
)
# where the question stands, what its attribute is on either side of it, and at which sizes the law applies
# whatever it is
PLACES: dict[str, tuple[str, tuple[str, str], Callable[[int, int], bool]]] = {
    "an attribute of the right side": (
        "Relu(x) => LeakyRelu(x, alpha={planted}) where rank(x) == 2",
        ("0", "1"),
        lambda n, m: True,
    ),
    "an attribute of the left side": (
        "LeakyRelu(x, alpha={planted}) => Relu(x) where rank(x) == 2",
        ("0", "1"),
        lambda n, m: True,
    ),
    "an axis": (
        "Concat(Softmax(x, axis=1), Softmax(y, axis=1), axis=0) => Softmax(Concat(x, y, axis=0), "
        "axis={planted}) where rank(x) == 2",
        ("1", "0"),
        lambda n, m: True,
    ),
    "a permutation": (
        "Transpose(Relu(x), perm=(1, 0)) => Relu(Transpose(x, perm={planted}))",
        ("(1, 0)", "(0, 1)"),
        lambda n, m: n == m > 1,
    ),
    "a tuple": (
        "Neg(Pad(x, pads=(1, 0, 0, 0))) => Pad(Neg(x), pads={planted}) where rank(x) == 2",
        ("(1, 0, 0, 0)", "(0, 0, 1, 0)"),
        lambda n, m: True,
    ),
    "an element of a tuple": (
        "Neg(Pad(x, pads=(1, 0, 1, 0))) => Pad(Neg(x), pads=({planted}, 0, 2-({planted}), 0)) "
        "where rank(x) == 2",
        ("1", "2"),
        lambda n, m: True,
    ),
    "an inner operator": (
        "Neg(Sub(Relu(x), y)) => Sub(y, LeakyRelu(x, alpha={planted})) "
        "where rank(x) == 2, shape(x) == shape(y)",
        ("0", "1"),
        lambda n, m: True,
    ),
    "a condition": (
        "LeakyRelu(x, alpha=a) => Relu(x) where rank(x) == 2, a == ({planted})",
        ("0", "1"),
        lambda n, m: True,
    ),
}
LARGEST = 14  # of the sizes at which a question is asked: beyond the numbers of all questions


class _Matrix(Fact):
    """One of known sizes."""

    def __init__(self, *shape: int):
        self.shape, self.dtype, self.static = shape, "float32", False


def answers(question: str, applies: Callable[[int, int], bool]) -> set[bool]:
    """What the question is answered by at sizes at which a law applies."""
    tree = parse_expression(question)
    sizes = product(range(1, LARGEST + 1), repeat=2)
    return {holds(tree, {"x": _Matrix(n, m)}) for n, m in sizes if applies(n, m)}


def laws(question: str, place: str) -> Iterator[tuple[str, bool]]:
    """The law with the question at a place, wrong where it is answered by no, wrong where by yes, and right
    in both cases; with whether it is wrong."""
    text, (right, wrong), applies = PLACES[place]
    given = answers(question, applies)
    for yes, no in ((right, wrong), (wrong, right), (right, right)):
        said = text.format(planted=f"{yes} if ({question}) else {no}")
        yield said, yes == wrong and True in given or no == wrong and False in given
