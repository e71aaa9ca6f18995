"""The arguments of `fit`, `fit_replicates` and `Training`: the same everywhere, and an error where they are wrong."""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_type_hints

import pyrodrop
from pyrodrop.training.settings import Settings, TrainingOptions


def arguments(function: object) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_options_have_one_default() -> None:
    """`Settings` has every option, and signatures and types of the options are made of it."""
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(fields) == set(get_type_hints(TrainingOptions)) | {"steps", "starts"}
    names = get_type_hints(TrainingOptions)
    for function in (pyrodrop.fit, pyrodrop.fit_replicates, pyrodrop.Training):
        own = arguments(function)
        assert all(p.kind is not p.VAR_KEYWORD for p in own.values())
        assert {name: own[name].default for name in names} == {name: fields[name] for name in names}
