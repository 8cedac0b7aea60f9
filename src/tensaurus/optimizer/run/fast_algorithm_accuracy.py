"""Which fast algorithms a result may use: those with which the whole model keeps its accuracy.

One layer's errors are measured on a sample, by the measure that the whole result is judged by.  How large
they may be depends on what is around the layer, which dilutes them or adds more: so the model is tried with
the fastest algorithms of all its layers, as standard operators, before any kernel is made; where that goes
too far, with those of smaller errors.
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

__all__ = ["Accuracy", "share"]

LIMITS = (3.0, 1.25, 0.75)  # of a layer's share of what a whole model may have, the first that does
ORDERED = 0.8  # of the error that standard operators may have: kernels add up in another order
DEEP = 256  # products added up, beyond which the errors of both sums grow alike
TRIED = 10**10  # operations of a model that is tried: larger ones take too much of the search's time
COPIES = 4  # of a sample, a rounding away


@dataclass
class Accuracy:
    """What one model admits at a level.

    judged  the error of an equal program beside what is allowed, on the runtime; infinite where it does not
            run in time, None where standard operators of the model's opset cannot say it
    note    gets a line where the fastest algorithms were held back
    """

    level: str
    program: Program
    roofline: Roofline
    judged: Callable[[Program], float | None]
    note: Callable[[str], None] = lambda line: None

    def allows(self, of: Convolution, algorithms: Algorithms) -> bool:
        """Whether a layer may be computed so."""
        return _within(self.limit, of, algorithms)

    @cached_property
    def limit(self) -> float:
        """Of the share that a layer's error may have; 0 where the model has room for no fast algorithm."""
        margin, errors = ERROR_FACTORS[self.level], dict[tuple[Node, ...], float | None]()
        if sum(map(operations, self.program.nodes)) > TRIED:  # the check of the result has the last word
            return LIMITS[1] * margin
        for limit in LIMITS:
            finder = Bilinear(self.roofline, partial(_within, limit * margin))
            fastest = next(finder.variants(self.program), self.program)
            if fastest is self.program:
                return limit * margin
            if fastest.roots not in errors:
                errors[fastest.roots] = self.judged(fastest)
            if (error := errors[fastest.roots]) is None:  # only kernels can: as of one that is too large
                return LIMITS[1] * margin
            if error <= ORDERED * margin:
                break
        else:
            limit = LIMITS[-1] if error == inf else 0.0
        if limit == LIMITS[-1]:
            more = f"where one layer uses more than {limit * margin:g} of the allowed error"
            self.note(f"fast convolutions are excluded {more}")
        elif not limit:
            self.note(f"fast convolutions are excluded: they would use {error:.2g} of the allowed error")
        return limit * margin


def _within(limit: float, of: Convolution, algorithms: Algorithms) -> bool:
    depth = 1 << (of.depth(algorithms) - 1).bit_length()
    return share(algorithms, min(depth, DEEP)) <= limit


@lru_cache(1000)
def share(algorithms: Algorithms, depth: int) -> float:
    """The largest error of a sample beside what is allowed of a whole model (`check/files/judge`)."""
    sample, rng = draw_sample(algorithms, depth), np.random.default_rng(1)
    direct = OriginalOutput(sample.exact, sample.direct(sample.data, sample.weights))
    for _ in range(COPIES):
        direct.add_perturbed(
            sample.direct(perturb_array(sample.data, rng), perturb_array(sample.weights, rng))
        )
    return direct.judge(sample.fast).worst
