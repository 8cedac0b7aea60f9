"""Matrix products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensaurus.expr.ir.element_types import Untypable
from tensaurus.expr.ir.scope import Body, Scope, Tensor, compute, lift, total
from tensaurus.expr.sizes.size import Size, is_same_size
from tensaurus.ops.declare import op
from tensaurus.ops.elementwise import broadcast_read, broadcast_shape, is_broadcast_shape


@op("MatMul", examples=[
    "f32[3,4] f32[4,5]", "f32[2,3,4] f32[2,4,5]", "f32[2,3,4] f32[4,5]", "f32[3,4] f32[2,4,5]",
    "f32[2,1,3,4] f32[5,4,1]", "f32[4] f32[4]", "f32[4] f32[2,4,3]", "f32[2,3,4] f32[4]", "i64[2,3] i64[3,2]",
])  # fmt: skip
def matmul(a: Tensor, b: Tensor) -> Scope:
    """numpy's matmul: the last dimension of a with the last but one of b, batches broadcast."""
    return matrix_product(a, b)


def matrix_product(a: Tensor | Scope, b: Tensor | Scope) -> Scope:
    """Return numpy's matmul of tensors or scopes."""
    if a.rank == 0 or b.rank == 0:
        raise Untypable("a matrix product of a scalar")
    inner = a.shape[-1]
    if not is_same_size(inner, b.shape[-2] if b.rank > 1 else b.shape[0]):
        raise Untypable(f"{_shape(a)} times {_shape(b)}")
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()

    def element(*indices: Size) -> Body:
        front, back = indices[: len(batch)], indices[len(batch) :]
        row, column = back[: len(rows)], back[len(rows) :]

        def term(k: Size) -> Any:
            left = _batch(a, front) + (*row, k)
            right = _batch(b, front) + (k, *column)
            return a[left] * b[right]

        return total((inner,), term)

    return compute((*batch, *rows, *columns), element)


def _batch(x: Tensor | Scope, indices: Sequence[Size]) -> tuple[Size, ...]:
    """Return the indices of x's batch dimensions that broadcasting pairs with these indices of the output."""
    sizes = x.shape[:-2]
    own_indices = indices[len(indices) - len(sizes) :]
    return tuple(0 if is_same_size(n, 1) else i for i, n in zip(own_indices, sizes, strict=True))


def _shape(x: Tensor | Scope) -> str:
    return f"[{', '.join(map(str, x.shape))}]"


def _gemm_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags as 0 or 1, and beta only where there is a c."""
    has_no_c = len(tensors) < 3 or tensors[2] is None
    return {
        "transA": int(bool(attrs["transA"])),
        "transB": int(bool(attrs["transB"])),
        "beta": 1 if has_no_c else attrs["beta"],
    }


@op("Gemm", since=7, canonicalize=_gemm_form, examples=[
    "f32[3,4] f32[4,5] f32[5]", "f32[4,3] f32[5,4] f32[3,1] transA=1 transB=1",
    "f32[3,4] f32[4,5] f32[] alpha=0.5 beta=2.0", "f32[3,4] f32[4,5] f32[1,5] alpha=0.25 beta=0.0",
    "f32[3,4] f32[5,4] - transB=1", "f32[1,4] f32[4,1] f32[1,1] beta=-1.5",
])  # fmt: skip
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None,
    *, alpha: Any = 1, beta: Any = 1, transA: int = 0, transB: int = 0,
) -> Scope:  # fmt: skip
    """alpha * a' b' + beta * c, primes standing for optional transposition, c broadcast to the result."""
    if a.rank != 2 or b.rank != 2:
        raise Untypable("Gemm takes matrices")
    rows, inner = reversed(a.shape) if transA else a.shape
    depth, columns = reversed(b.shape) if transB else b.shape
    if not is_same_size(inner, depth):
        raise Untypable(f"{_shape(a)} times {_shape(b)}")
    shape = (rows, columns)
    if c is not None and not is_broadcast_shape(shape, c.shape):
        raise Untypable(f"{_shape(c)} does not broadcast to [{rows}, {columns}]")

    def element(i: Size, j: Size) -> Body:
        product = total((inner,), lambda k: a[(k, i) if transA else (i, k)] * b[(j, k) if transB else (k, j)])
        return add_scaled(scale_body(product, alpha), None if c is None else broadcast_read(c, (i, j)), beta)

    return compute(shape, element)


def scale_body(body: Body, factor: Any) -> Body:
    """Return factor * body, without a factor of one."""
    return body if factor == 1 else lift(factor) * body


def add_scaled(body: Body, other: Body | None, factor: Any) -> Body:
    """Return body + factor * other, the body alone where there is no other."""
    return body if other is None or factor == 0 else body + scale_body(other, factor)


def _einsum_form(tensors: Sequence[Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the equation with its output written out, and letters in order of first appearance."""
    left, right = _terms(attrs["equation"])
    if right is None:
        all_letters = "".join(left).replace(".", "")
        single_letters = "".join(sorted(c for c in set(all_letters) if all_letters.count(c) == 1))
        right = ("..." if any("." in term for term in left) else "") + single_letters
    text = ",".join(left) + "->" + right
    letters = dict.fromkeys(c for c in text if c.isalpha())
    names = dict(zip(letters, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    return {"equation": "".join(names.get(c, c) for c in text)}


def _terms(equation: str) -> tuple[list[str], str | None]:
    """Return the inputs' terms and the output's: ["ij", "jk"], "ik"; None for the latter without an arrow."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    for term in (*left.split(","), right):
        letters = term.replace("...", "", 1)
        if letters and not (letters.isascii() and letters.isalpha()):
            raise Untypable(f"the equation {equation}")
    return left.split(","), right if arrow else None


@op("Einsum", since=12, canonicalize=_einsum_form, examples=[
    "f32[3,4] f32[4,5] equation='ij,jk->ik'",
    "f32[2,3,4] f32[2,5,4] equation='b i k, b j k -> b i j'",
    "f32[2,3,4] equation='...ij->...ji'", "f32[3,3] equation='ii->i'", "f32[2,3] f32[2,3] equation='ij,ij'",
    "f32[2,1,3,4] f32[2,5,4,2] equation='...ij,...jk->...ik'",
])  # fmt: skip
def einsum(*xs: Tensor, equation: str) -> Scope:
    """The product of the inputs, summed over the letters that the output lacks."""
    left, right = _terms(equation)
    if right is None or len(left) != len(xs):
        raise Untypable(f"the equation {equation} of {len(xs)} inputs")
    # collect the size of each letter and of each "..."; 1 broadcasts with any size
    sizes: dict[str, Size] = {}
    fronts: list[tuple[Size, ...]] = []  # of each input with "...": the sizes that it stands for
    for x, term in zip(xs, left, strict=True):
        letters = term.replace("...", "")
        count = x.rank - len(letters)
        if count < 0 or count > 0 and "." not in term:
            raise Untypable(f"{term} for an input of rank {x.rank}")
        start = term.find("...") if "." in term else 0  # "..." stands for the `count` dimensions from here on
        if "." in term:
            fronts.append(x.shape[start : start + count])
        for letter, size in zip(letters, x.shape[:start] + x.shape[start + count :], strict=True):
            known_size = sizes.get(letter, 1)
            if (
                not is_same_size(known_size, 1)
                and not is_same_size(size, 1)
                and not is_same_size(size, known_size)
            ):
                raise Untypable(f"{letter} is {known_size} and {size}")
            sizes[letter] = known_size if is_same_size(size, 1) else size
    front = broadcast_shape(*fronts)
    output = right.replace("...", "")
    # refuse an output that lacks the "..." of the inputs, has a new letter, or has one letter twice
    if front and "." not in right or not set(output) <= set(sizes) or len(set(output)) != len(output):
        raise Untypable(f"the equation {equation}")
    split = max(right.find("..."), 0)  # the dimension of the output at which "..." begins
    summed_letters = [letter for letter in sizes if letter not in output]
    shape = tuple(sizes[c] for c in output)

    def element(*indices: Size) -> Body:
        middle = indices[split : split + len(front)]  # the indices that "..." stands for
        index_of = dict(zip(output, indices[:split] + indices[split + len(front) :], strict=True))

        def term(*inner: Size) -> Body:
            at = {**index_of, **dict(zip(summed_letters, inner, strict=True))}
            parts = [_einsum_read(x, text, at, middle) for x, text in zip(xs, left, strict=True)]
            result = parts[0]
            for part in parts[1:]:
                result = result * part
            return result

        return total([sizes[c] for c in summed_letters], term)

    return compute((*shape[:split], *front, *shape[split:]), element)


def _einsum_read(x: Tensor, term: str, at: Mapping[str, Size], middle: Sequence[Size]) -> Body:
    """Return the element of x at the indices `at` of the term's letters, and `middle` of its "..."."""
    count = x.rank - len(term.replace("...", ""))
    head, dots, tail = term.partition("...")
    own_middle = middle[len(middle) - count :] if dots else ()
    indices = (*(at[c] for c in head), *own_middle, *(at[c] for c in tail))
    return x[tuple(0 if is_same_size(n, 1) else i for i, n in zip(indices, x.shape, strict=True))]
