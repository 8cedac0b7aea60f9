"""Proposes fast bilinear algorithms: equations of a convolution and a form with fewer multiplications.

    Conv(x, w, b)   ->   eop(x, eop(w, scope=U), b, scope=Y)
    U = G w                            the transformed weights, computed once where w is constant
    Y = AT (sum[c](BT x * U)) + b      over tiles of x; `bilinear_algorithm` explains AT, G and BT

(Toom 1963, Cook 1966, Winograd 1980; for convolution layers: Lavin and Gray, CVPR 2016.)
"""

from __future__ import annotations

from tensaurus.finders.bilinear.bilinear_finder import Bilinear
from tensaurus.finders.bilinear.convolution_equation import fast_convolution_equation
from tensaurus.finders.bilinear.interpolation_points import best_algorithm

__all__ = ["Bilinear", "best_algorithm", "fast_convolution_equation"]
