"""List the operators whose results change abruptly: those that round, and those that order scores.

`check` draws inputs at the thresholds of the former, and tells near ties of the latter from errors.
"""

from __future__ import annotations

from collections.abc import Mapping

NO_INPUT = 9  # the number of no input
# by operator that rounds: the number of the input that holds the rounding step; NO_INPUT for a step of 1
STEP_INPUT: Mapping[str, int] = {
    "Cast": NO_INPUT, "Ceil": NO_INPUT, "Floor": NO_INPUT, "QuantizeLinear": 1, "Round": NO_INPUT,
}  # fmt: skip

# by operator: the numbers of the inputs that hold scores, elements that are compared with each other
SCORE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "ArgMax": (0,), "ArgMin": (0,), "Hardmax": (0,), "NonMaxSuppression": (0, 1), "TopK": (0,),
}  # fmt: skip
