"""torchvision, timm and transformers beside a CPU build of torch: what the zoo is compared with.

torchvision's wheels are built against CUDA, so on a CPU build its native operators do not load, and its
import stops where it gives two of them abstract kernels. The models need none of them: declaring the two
names is enough.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the `bench` extra is not installed")

_torchvision = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _torchvision.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
