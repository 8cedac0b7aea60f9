"""Fast bilinear algorithms: convolutions with fewer multiplications, as equalities that are proved.

    Conv(x, w, b)   ->   eop(x, eop(w, scope=G), b, scope=L[...](AT (sum[c](BT x * U)) AT + b))

(Toom 1963, Cook 1966, Winograd 1980; as convolution layers: Lavin and Gray, CVPR 2016.)
"""

from __future__ import annotations

from tensaurus.finders.bilinear.bilinear_finder import Bilinear
from tensaurus.finders.bilinear.convolution_equation import convolution
from tensaurus.finders.bilinear.interpolation_points import best

__all__ = ["Bilinear", "best", "convolution"]
