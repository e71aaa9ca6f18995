"""Imports for networks of other packages."""

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
    """Import torchvision if it is installed, as timm and transformers do.

    With a torch of another build its compiled operators cannot be loaded. The networks need none of them, but the import of
    torchvision needs the two operators below, so they are defined without an implementation.
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
