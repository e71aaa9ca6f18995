"""Networks of packages that are not this package's."""

from __future__ import annotations

import importlib
import importlib.util

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept: list[torch.library.Library] = []


def torchvision() -> None:
    """Import torchvision, where it is installed, as timm and transformers do.

    Beside a torch of another build its compiled operators do not load; networks need none of them, but its import needs the
    two that it registers shapes for.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(schema)
        _kept.append(library)
        importlib.import_module("torchvision")
