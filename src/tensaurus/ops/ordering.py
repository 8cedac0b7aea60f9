"""Lists of the operators whose results change abruptly: those that round, and those that order scores.

`check` draws inputs at their thresholds, and tells near ties from errors.
"""

from __future__ import annotations

from collections.abc import Mapping

# operators that round, with the number of the input that holds the rounding step; 9, a number that no input
# has, stands for a step of 1
ROUNDING: Mapping[str, int] = {"Cast": 9, "Ceil": 9, "Floor": 9, "QuantizeLinear": 1, "Round": 9}

# by operator, the numbers of the inputs that hold scores, elements that are compared with each other
ORDERING: Mapping[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "Hardmax": (0,),
    "NonMaxSuppression": (0, 1),
    "TopK": (0,),
}
