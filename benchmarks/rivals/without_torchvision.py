"""Operators for rivals that import torchvision but do not use it here.

PyPI's torchvision is built for CUDA. With a CPU build of torch its extension cannot be loaded, and `import torchvision`
fails with `RuntimeError: operator torchvision::nms does not exist`. Defining that operator is sufficient.
"""

from __future__ import annotations

import torch

OPERATORS = torch.library.Library("torchvision", "DEF")  # the operators exist as long as this object
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
