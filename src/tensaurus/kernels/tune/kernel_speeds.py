"""Expects the seconds of kernels that were not tuned yet from those of kernels that were (ETO section 5.1).

    sum[192,49 over 1152] took 1.2 times as long as at the peaks   ->   sum[160,49 over 960]: about 1.2 times

Kernels of forms that differ in their extents only are as far from the machine's peaks as each other, the more
so the closer the extents.  A *family* are the forms that differ in extents only: strides are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from heapq import nsmallest
from math import exp, inf, log

from tensaurus.kernels.tune.schedule_reuse import count_form_work
from tensaurus.runtimes.price.roofline import Roofline

__all__ = ["EXTENT", "KernelSpeeds", "form_distance"]

NEIGHBOURS = 3  # nearest forms of which an expected speed is the mean
MIN_DISTANCE = 0.2  # added to distances, so that forms of nearly the same sizes count about alike
# Expectations are multiplied by OPTIMISM: as a kernel that is expected to be slow is never tuned, they are
# rather too low, and the lower the less is known: by LOSS where only another machine timed the nearest form,
# and by LOSS for its distance.  The median error for 470 forms by others of their families was 22 %, and 14 %
# above 0.15 ms; 10 % took less than 0.60 of what was expected, and at distances below 1 than 0.78.
OPTIMISM, LOSS, MIN_OPTIMISM = 0.9, 0.1, 0.6
# The least multiples of the time at the machine's peaks for a kernel with one sum of products, and with
# several, where none of its family was tuned: of 240 kernels one in twenty took less.  A convolution fused
# with a depthwise one took 3.5 to 9 times as long as at the peaks, but was tuned first, for its promise.
LEAST_MULTIPLE, LEAST_MULTIPLE_OF_SEVERAL = 1.3, 1.9
PRODUCT = "; "  # between the operands of a reduction that multiplies two tensors
EXTENT = re.compile(r"(?<!\*)\b\d+\b(?!\*)")  # a number that is no part of 2*1, which is 2 times axis 1


@dataclass
class _Family:
    """The forms of one family that were tuned.

    multiples  by the form's text: its seconds, divided by those at the machine's peaks
    timed      the forms that were timed on this machine
    expected   answers for forms by their texts, until one more form is learnt
    """

    multiples: dict[str, float] = field(default_factory=dict)
    timed: set[str] = field(default_factory=set)
    expected: dict[str, float] = field(default_factory=dict)


class KernelSpeeds:
    """Knows how far from the machine's peaks tuned kernels ran, and what that tells of others.

    `read_roofline` returns the machine's roofline; it is called once, at the first question.
    """

    def __init__(self, read_roofline: Callable[[], Roofline]):
        self._read_roofline = read_roofline
        self._roofline: Roofline | None = None
        self._families: dict[str, _Family] = {}

    def learn(self, form: str, seconds: float) -> None:
        """Learns the seconds of a kernel that was tuned on this machine, by the text of its form.

        The fastest kernel of a form counts: others compute more before and after the reduction.
        """
        family, at_peaks = self._family(form), self._peak_seconds(form)
        if 0 < at_peaks < inf and 0 < seconds < inf:
            before = family.multiples[form] if form in family.timed else inf
            self.learn_multiple(form, min(before, seconds / at_peaks))
            family.timed.add(form)

    def learn_multiple(self, form: str, multiple: float) -> None:
        """Learns how many times as long as at the peaks a kernel took on another machine of this kind."""
        family = self._family(form)
        family.multiples[form] = multiple
        family.expected.clear()

    def multiple(self, form: str) -> float:
        """Returns what was learnt of a form; 0 where it was not tuned."""
        return self._family(form).multiples.get(form, 0.0)

    def timed_seconds(self, form: str) -> float:
        """Returns the seconds of a form's fastest kernel that was timed here; infinite where none was."""
        family = self._family(form)
        return family.multiples[form] * self._peak_seconds(form) if form in family.timed else inf

    def forget(self, form: str) -> None:
        """Forgets what was learnt of a form."""
        family = self._family(form)
        family.multiples.pop(form, None)
        family.timed.discard(form)
        family.expected.clear()

    def least_seconds(self, form: str) -> float:
        """Returns the seconds that a kernel of this form takes at least.

        The expectation is optimistic, so that no kernel is missed that would gain.
        """
        family = self._family(form)
        if form not in family.expected:
            if family.multiples:
                family.expected[form] = self._expect(form, family)
            else:
                products = sum(PRODUCT in line for line in form.splitlines())
                multiple = LEAST_MULTIPLE_OF_SEVERAL if products > 1 else LEAST_MULTIPLE
                family.expected[form] = multiple * self._peak_seconds(form)
        return family.expected[form]

    def _expect(self, form: str, family: _Family) -> float:
        """Returns the peak seconds times the mean multiple of the nearest forms, or of the form itself."""
        known = [form] if form in family.multiples else family.multiples
        nearest = nsmallest(NEIGHBOURS, ((form_distance(form, other), other) for other in known))
        weights = {other: 1 / (MIN_DISTANCE + distance) for distance, other in nearest}
        logarithm = sum(weight * log(family.multiples[other]) for other, weight in weights.items())
        distance, form_nearby = nearest[0]
        unsure = distance + (form_nearby not in family.timed)
        optimism = max(MIN_OPTIMISM, OPTIMISM - LOSS * unsure)
        return optimism * exp(logarithm / sum(weights.values())) * self._peak_seconds(form)

    def _peak_seconds(self, form: str) -> float:
        """Returns the seconds of a form at the machine's peaks; 0 for a text of another version."""
        if self._roofline is None:
            self._roofline = self._read_roofline()
        try:
            return self._roofline.seconds(*count_form_work(form))
        except (ValueError, TypeError):
            return 0.0

    def _family(self, form: str) -> _Family:
        return self._families.setdefault(EXTENT.sub("#", form), _Family())


def form_distance(text: str, other: str) -> float:
    """Returns how far two forms' sizes are apart: the sum of their ratios' logarithms.

    Infinite for unlike forms, whose texts differ in more than numbers.
    """
    if _without_numbers(text) != _without_numbers(other):
        return inf
    return sum(abs(a - b) for a, b in zip(_logarithms(text), _logarithms(other), strict=True))


@cache
def _without_numbers(text: str) -> str:
    """Returns the text with each number replaced by #."""
    return re.sub(r"\d+", "#", text)


@cache
def _logarithms(text: str) -> tuple[float, ...]:
    """Returns the logarithm of one more than each number in the text."""
    return tuple(log(1 + int(number)) for number in re.findall(r"\d+", text))
