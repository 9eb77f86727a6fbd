"""For rivals that import torchvision at their top and use nothing of it here.

PyPI's torchvision is built for CUDA; beside a CPU build of torch its extension cannot be loaded, and `import
torchvision` ends with `RuntimeError: operator torchvision::nms does not exist`. Naming that operator is all it takes.
"""

from __future__ import annotations

import torch

OPERATORS = torch.library.Library("torchvision", "DEF")  # lives as long as the operators
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
