"""Decides which fast convolution algorithms a result may use so that the whole model keeps its accuracy.

A layer's error with one algorithm is measured on a sample, as a fraction of the error that the check of the
result allows.  How large that may be depends on the layers around, which shrink or add errors.  So the whole
model is tried with the fastest algorithm of each layer, as standard operators and before any kernel is
generated; where its error is too large, with algorithms of smaller errors:

    layer limit 3 -> the model uses 1.7 of the allowed error; 1.25 -> 0.6: algorithms up to 1.25 are admitted
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import inf

import numpy as np

from tensaurus.check.files.allowed_error import ERROR_FACTORS
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.inputs.perturbation import perturb_array
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.float32_error import draw_sample
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.graph.ir.node import Node
from tensaurus.graph.ir.program import Program
from tensaurus.runtimes.price.operation_counts import operations
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["Accuracy", "sample_error"]

LAYER_LIMITS = (3.0, 1.25, 0.75)  # of one layer's error, in allowed errors of a whole model; tried in turn
UNTRIED_LIMIT = LAYER_LIMITS[1]  # a guess where the model is not tried; the check of the result decides
PROBE_LIMIT = 0.8  # share of the allowed error for standard operators, as kernels add in another order
MAX_DEPTH = 256  # products of one sum; beyond it the errors of fast and direct sums grow alike
MAX_PROBED_OPERATIONS = 10**10  # of a model; trying a larger one takes too much of the search's time
PERTURBED_SAMPLES = 4  # copies of a sample that differ by one rounding, as the check of the result has


@dataclass
class Accuracy:
    """Decides which algorithms one model admits at an accuracy level of `ERROR_FACTORS`.

    measure_error  returns the error of an equal program on the runtime, as a fraction of the allowed error;
                   infinite where it does not run in time, None where no standard operators of the model's
                   opset can express it
    note           receives a line where all but the most accurate algorithms, or all, are excluded
    """

    level: str
    program: Program
    roofline: Roofline
    measure_error: Callable[[Program], float | None]
    note: Callable[[str], None] = lambda line: None

    def allows(self, convolution: Convolution, algorithms: Algorithms) -> bool:
        """Return whether the convolution may be computed by these algorithms, one or None per dimension."""
        return _is_within(self.layer_limit, convolution, algorithms)

    @cached_property
    def layer_limit(self) -> float:
        """The largest error of one layer, in allowed errors; 0: the model may use no fast algorithm."""
        return self._find_limit(ERROR_FACTORS[self.level]) * ERROR_FACTORS[self.level]

    def _find_limit(self, margin: float) -> float:
        """Try the model with each limit of LAYER_LIMITS; return the first that keeps it accurate, or 0.

        All errors are in allowed errors of the level "like"; at the model's own level `margin` times as much
        is allowed.
        """
        if sum(map(operations, self.program.nodes)) > MAX_PROBED_OPERATIONS:
            return UNTRIED_LIMIT
        errors: dict[tuple[Node, ...], float | None] = {}  # of programs, by roots: each is measured once
        for limit in LAYER_LIMITS:  # the program with the fastest algorithm of each layer within the limit
            finder = Bilinear(self.roofline, partial(_is_within, limit * margin))
            fastest = next(finder.variants(self.program), self.program)
            if fastest is self.program:  # no algorithm within the limit is expected to gain: nothing to try
                return limit
            if fastest.roots not in errors:
                errors[fastest.roots] = self.measure_error(fastest)
            if (error := errors[fastest.roots]) is None:  # only kernels express the algorithm
                return UNTRIED_LIMIT
            # where no error could be measured at all, the most accurate algorithms are kept
            if error <= PROBE_LIMIT * margin or (error == inf and limit == LAYER_LIMITS[-1]):
                if limit == LAYER_LIMITS[-1]:
                    more = f"where one layer uses more than {limit * margin:g} of the allowed error"
                    self.note(f"fast convolutions are excluded {more}")
                return limit
        self.note(f"fast convolutions are excluded: they would use {error:.2g} of the allowed error")
        return 0.0


def _is_within(limit: float, convolution: Convolution, algorithms: Algorithms) -> bool:
    """Return whether the error of a sample that these algorithms compute is within the limit."""
    # up to a power of two, so that many layers share one cached sample
    depth = 1 << (convolution.depth(algorithms) - 1).bit_length()
    return sample_error(algorithms, min(depth, MAX_DEPTH)) <= limit


@lru_cache(1000)
def sample_error(algorithms: Algorithms, depth: int) -> float:
    """Return the largest error of a sample layer, in errors that a model may have (`check/files/judge`)."""
    sample, rng = draw_sample(algorithms, depth), np.random.default_rng(1)
    direct = OriginalOutput(sample.exact, sample.direct(sample.data, sample.weights))
    for _ in range(PERTURBED_SAMPLES):
        direct.add_perturbed(
            sample.direct(perturb_array(sample.data, rng), perturb_array(sample.weights, rng))
        )
    return direct.judge(sample.fast).worst
