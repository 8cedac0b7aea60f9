"""Operators whose result is an order: what they read, and where scores that are nearly equal change it."""

from __future__ import annotations

from collections.abc import Mapping

# operators that round, with the input that holds the steps; one beyond all inputs where these are of 1
ROUNDING: Mapping[str, int] = {"Cast": 9, "Ceil": 9, "Floor": 9, "QuantizeLinear": 1, "Round": 9}

# of each operator, the inputs that hold scores: numbers that are compared with each other
ORDERING: Mapping[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "Hardmax": (0,),
    "NonMaxSuppression": (0, 1),
    "TopK": (0,),
}
