"""Longformer's sliding-window attention (Beltagy et al., 2020) in the chunked form of its authors."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tensaurus.app.zoo.builder import Builder, Value
from tensaurus.app.zoo.catalog import workload

__all__ = ["multiply_to_band", "sliding_window_attention"]

HEADS, LENGTH, SIZE = 8, 4096, 64

_MASKED_SCORE = -10000.0  # far below any score: its exponential is 0


def sliding_window_attention(
    b: Builder, batch: int, *, width: int, dilation: int, heads: int, length: int, size: int
) -> Value:
    """Build attention of each position to itself and `width` positions on each side, `dilation` apart.

    Inputs and output are [batch, heads, length, size]. Positions that are equal modulo `dilation` attend only
    to each other, so that they become sequences of their own.
    """
    each = length // dilation
    if each % width or each < 2 * width:
        raise ValueError(f"a window of {width} does not divide {each} positions into two chunks or more")

    def split(x: Value) -> Value:
        if dilation > 1:
            x = b.transpose(b.reshape(x, batch * heads, each, dilation, size), 0, 2, 1, 3)
        return b.reshape(x, batch * heads * dilation, each // width, width, size)

    query, key, value = (b.input(name, batch, heads, length, size) for name in ("query", "key", "value"))
    scores = multiply_to_band(b, split(b.mul(query, b.constant(size**-0.5))), split(key))
    mixed = _multiply_band(b, b.node("Softmax", scores, axis=-1), split(value))
    if dilation > 1:
        mixed = b.transpose(b.reshape(mixed, batch * heads, dilation, each, size), 0, 2, 1, 3)
    return b.reshape(mixed, batch, heads, length, size)


def multiply_to_band(b: Builder, query: Value, key: Value) -> Value:
    """Multiply each query with the keys of its window (G2BMM): [rows, blocks, width, 2 width + 1].

    Queries and keys are [rows, blocks, width, size]. Chunks of two blocks are multiplied in full: F[i, j] is
    query i times key j. With one row padded, and read in rows of 2 width + 1, diagonals become columns: place
    (r, c) holds F[r, r + c], of the key c after query r, where r + c < 2 width; elsewhere
    F[r + 1, r + c - 2 width], of the key 2 width + 1 - c before query r + 1. For a width of 1:

        F00 F01          F00 F01 F10     columns: own key, 1 later, 1 earlier (of the next query)
        F10 F11    ->    F11  0   0
         0   0
    """
    rows, _, width, _ = query.shape
    full = b.node("MatMul", _chunks(b, query, 2), b.transpose(_chunks(b, key, 2), 0, 1, 3, 2))
    chunks, side = full.shape[1], 2 * width
    band = b.reshape(_pad(b, full, 2, after=1), rows, chunks, side, side + 1)

    # Columns of earlier keys: each block as the second of a chunk, but the first block (`top`) as the first
    # of the first chunk, masked where the window begins before the sequence; query 0 gets the padded row.
    place = np.arange(width)
    top = _cut(b, band, (1, 0, 1), (2, 0, width - 1), (3, width + 1, side + 1))
    top = _mask_scores(b, np.add.outer(place, place) < width, _pad(b, top, 2, before=1))
    before = b.concat(top, _cut(b, band, (2, width - 1, side - 1), (3, width + 1, side + 1)), axis=1)

    # Columns of the query's own and later keys: each block as the first of a chunk, the last as the second.
    last = _cut(b, band, (1, chunks - 1, chunks), (2, width, side), (3, 0, width + 1))
    last = _mask_scores(b, np.add.outer(place, np.arange(width + 1)) >= width, last)
    after = b.concat(_cut(b, band, (2, 0, width), (3, 0, width + 1)), last, axis=1)
    return b.concat(before, after, axis=3)


def _multiply_band(b: Builder, band: Value, value: Value) -> Value:
    """Sum the values of each window, weighted by the band (GBMM): [rows, blocks, width, size].

    The windows of a block reach over three blocks of values. Rows of the band, padded to 3 width + 2 and then
    read in rows of 3 width + 1, are shifted: row i by i places, so that its weights stand at its own window.
    """
    rows, blocks, width, _ = band.shape
    reach = 3 * width
    padded = b.reshape(_pad(b, band, 3, after=width + 1), rows, blocks, width * (reach + 2))
    shifted = b.reshape(_cut(b, padded, (2, 0, width * (reach + 1))), rows, blocks, width, reach + 1)
    values = _chunks(b, _pad(b, value, 1, before=1, after=1), 3)
    return b.node("MatMul", _cut(b, shifted, (3, 0, reach)), values)


def _chunks(b: Builder, blocks: Value, count: int) -> Value:
    """Return the overlapping chunks of `count` neighboring blocks, one for each possible first block."""
    chunks = blocks.shape[1] - count + 1
    return b.concat(*(_cut(b, blocks, (1, first, first + chunks)) for first in range(count)), axis=2)


def _cut(b: Builder, x: Value, *ranges: tuple[int, int, int]) -> Value:
    """Return the part of x within the ranges (axis, start, stop)."""
    axes, starts, stops = (b.constant(part) for part in zip(*ranges, strict=True))
    return b.node("Slice", x, starts, stops, axes)


def _pad(b: Builder, x: Value, axis: int, *, before: int = 0, after: int = 0) -> Value:
    """Return x padded with zeros along one axis."""
    sizes = np.zeros((2, len(x.shape)), np.int64)
    sizes[:, axis] = before, after
    return b.node("Pad", x, b.constant(sizes.ravel()))


def _mask_scores(b: Builder, where: ArrayLike, scores: Value) -> Value:
    """Return the scores, masked at places where the window reaches over the border."""
    return b.node("Where", b.constant(where, dtype="bool"), b.constant(_MASKED_SCORE), scores)


def _published(b: Builder, batch: int, width: int, dilation: int) -> Value:
    return sliding_window_attention(
        b, batch, width=width, dilation=dilation, heads=HEADS, length=LENGTH, size=SIZE
    )


@workload("longformer", parameters=0.0, multiply_adds=0.9311, papers=("einnet",), batches=(1, 16))
def longformer(b: Builder, batch: int) -> Value:
    """Longformer's attention, 8 heads, length 4096, width 64."""
    return _published(b, batch, 64, 1)


@workload("longformer_d4", parameters=0.0, multiply_adds=0.9060, papers=("einnet",), batches=(1, 16))
def longformer_d4(b: Builder, batch: int) -> Value:
    """Longformer's attention, 8 heads, length 4096, width 64, dilation 4."""
    return _published(b, batch, 64, 4)


@workload("longformer_w512", parameters=0.0, multiply_adds=6.979, papers=("einnet",), batches=(1, 16))
def longformer_w512(b: Builder, batch: int) -> Value:
    """Longformer's attention, 8 heads, length 4096, width 512."""
    return _published(b, batch, 512, 1)


@workload("longformer_w512_d4", parameters=0.0, multiply_adds=5.369, papers=("einnet",), batches=(1, 16))
def longformer_w512_d4(b: Builder, batch: int) -> Value:
    """Longformer's attention, 8 heads, length 4096, width 512, dilation 4."""
    return _published(b, batch, 512, 4)
