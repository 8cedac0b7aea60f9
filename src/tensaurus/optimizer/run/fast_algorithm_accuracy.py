"""Decides which fast convolution algorithms a result may use so that the whole model keeps its accuracy.

A layer's error with one algorithm is measured on a sample, as a fraction of the error that the check of the
result allows.  How large that may be depends on the layers around, which shrink or add errors.  So the whole
model is tried with the fastest algorithm of each layer, as standard operators and before any kernel is
generated; where its error is too large, with algorithms of smaller errors.  A model's error grows about as
its layers' errors do, so the next limit follows from the error of the last trial:

    limit 3, layers use 0.7 of the allowed error -> the model uses 2.0 of it, where 0.8 may be used
    0.7 * 0.8 / 2.0 = 0.28: limit 0.28 -> the model uses 0.6: algorithms up to 0.28 are admitted
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import inf
from time import monotonic

import numpy as np

from tensaurus.check.files.allowed_error import ERROR_FACTORS
from tensaurus.check.files.judge import OriginalOutput
from tensaurus.check.inputs.perturbation import perturb_array
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.bilinear.fast_convolution import Convolution
from tensaurus.finders.bilinear.float32_error import draw_sample
from tensaurus.finders.bilinear.tiling import Algorithms
from tensaurus.graph.ir.program import Program
from tensaurus.runtimes.price.operation_counts import operations
from tensaurus.runtimes.price.roofline import Roofline
from tensaurus.system.timeline import record

__all__ = ["Accuracy", "sample_error"]

# Limits of one layer's error, in allowed errors of a whole model:
FIRST_LIMIT = 3.0  # tried first
UNTRIED_LIMIT = 1.25  # a guess where the model is not tried; the check of the result decides
CAREFUL_LIMIT = 0.75  # of a model whose error cannot be measured; below it a note says what is excluded
MIN_LIMIT = 0.1  # no algorithm that gains has so small an error
MAX_TRIALS = 4  # of the whole model: each may take seconds
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
        """Try the model with lower and lower limits; return the first that keeps it accurate, or 0.

        All errors are in allowed errors of the level "like"; at the model's own level `margin` times as much
        is allowed.
        """
        if sum(map(operations, self.program.nodes)) > MAX_PROBED_OPERATIONS:
            return UNTRIED_LIMIT
        limit, error = FIRST_LIMIT, inf
        for _ in range(MAX_TRIALS):
            if limit < MIN_LIMIT:
                break
            # the program with the fastest algorithm of each layer within the limit, and their largest error
            used: list[float] = []
            finder = Bilinear(self.roofline, partial(_is_within, limit * margin, used=used))
            fastest = next(finder.variants(self.program), self.program)
            if fastest is self.program:  # no algorithm within the limit is expected to gain
                if error == inf:  # nothing was measured
                    return limit
                break
            began = monotonic()
            measured = self.measure_error(fastest)
            if measured is None:  # only kernels express the algorithm
                return UNTRIED_LIMIT
            error = measured
            record("accuracy", layer_limit=limit, model_error=error, trial_seconds=monotonic() - began)
            # where no error can be measured at all, accurate algorithms are kept
            if error <= PROBE_LIMIT * margin or (error == inf and limit <= CAREFUL_LIMIT):
                if limit <= CAREFUL_LIMIT:
                    more = f"where one layer uses more than {limit * margin:.2g} of the allowed error"
                    self.note(f"fast convolutions are excluded {more}")
                return limit
            if error == inf:
                limit = CAREFUL_LIMIT
            else:
                limit = min(limit, max(used) / margin) * PROBE_LIMIT * margin / error
        self.note(f"fast convolutions are excluded: they would use {error:.2g} of the allowed error")
        return 0.0


def _is_within(
    limit: float, convolution: Convolution, algorithms: Algorithms, used: list[float] | None = None
) -> bool:
    """Return whether the error of a sample that these algorithms compute is within the limit.

    Errors within the limit are added to the `used` ones.
    """
    # up to a power of two, so that many layers share one cached sample
    depth = 1 << (convolution.depth(algorithms) - 1).bit_length()
    error = sample_error(algorithms, min(depth, MAX_DEPTH))
    if used is not None and error <= limit:
        used.append(error)
    return error <= limit


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
