"""Computes the error that is typical of elements of like magnitude.

One element's error may be small by accident, so an element is judged by the errors of its group, too.
"""

from __future__ import annotations

import numpy as np

from tensaurus.runtimes.backends import Array

__all__ = ["typical_errors"]

MIN_GROUP_SIZE = 64  # elements of a group, where the tensor has as many
MAX_GROUP_EXPONENTS = 8  # powers of two over which the magnitudes of one group spread
ERROR_QUANTILE = 0.9  # of a group: the largest errors may be accidents of single elements


def typical_errors(size: Array, error: Array) -> Array:
    """Return for each element the ERROR_QUANTILE of the errors of its group: elements of like magnitude.

    `size` holds magnitudes, `error` errors, in one shape.  Zeros belong to the group of the smallest others.
    """
    flat, errors = size.ravel(), error.ravel()
    exponents = np.frexp(flat)[1]
    nonzero = np.flatnonzero(flat > 0)
    result = np.zeros(flat.shape)
    if not nonzero.size:
        return result.reshape(size.shape)
    order = nonzero[np.argsort(exponents[nonzero], kind="stable")]
    starts = np.flatnonzero(np.diff(exponents[order], prepend=np.iinfo(np.int32).min))
    # a group is a range of `order`: runs of equal exponents are joined until there are enough elements, or
    # the next run is too far away
    groups: list[tuple[int, int]] = []
    begin = 0
    for end in (*starts[1:], order.size):
        last = end == order.size
        if (
            last
            or end - begin >= MIN_GROUP_SIZE
            or exponents[order[end]] - exponents[order[begin]] >= MAX_GROUP_EXPONENTS
        ):
            groups.append((begin, int(end)))
            begin = int(end)
    # a last group that is too small joins the one before, where the magnitudes allow that
    if len(groups) > 1 and groups[-1][1] - groups[-1][0] < MIN_GROUP_SIZE:
        first, end = groups[-2][0], groups[-1][1]
        if exponents[order[end - 1]] - exponents[order[first]] < MAX_GROUP_EXPONENTS:
            groups[-2:] = [(first, end)]
    for begin, end in groups:
        members = order[begin:end]
        result[members] = np.quantile(errors[members], ERROR_QUANTILE)
    result[flat == 0] = result[order[0]]
    return result.reshape(size.shape)
