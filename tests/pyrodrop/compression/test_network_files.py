"""Files of compressed networks that somebody else wrote, or that were damaged: no code runs, and nothing wrong comes out."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from pyrodrop.compression import read_network, write_network
from pyrodrop.compression.steps import Affine, Picked, Plain, Rescaled, Standardised, network_of

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def steps() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 2, generator=generator)
    sparse = torch.zeros(40, 6)
    sparse[3, 1], sparse[17, 5] = 1.5, -2.0
    return [
        Standardised(torch.tensor([0.5, 0.0, 1.0]), torch.tensor([2.0, 1.0, 3.0])),
        Picked(torch.tensor([0, 2])),
        Affine("layers.0", weight, torch.ones(6)),
        Plain(nn.LeakyReLU, {"negative_slope": 0.2}),
        Affine("layers.1", sparse, torch.zeros(40), csr=True),
        Affine("layers.2", torch.ones(2, 40), torch.zeros(2)),
        Rescaled(torch.tensor([1.0]), torch.tensor([4.0]), 1),
    ]


def by_hand(x: torch.Tensor) -> torch.Tensor:
    _, _, first, _, second, _, _ = steps()
    h = ((x - torch.tensor([0.5, 0.0, 1.0])) / torch.tensor([2.0, 1.0, 3.0]))[:, [0, 2]] @ first.weight.T + 1
    h = torch.where(h > 0, h, 0.2 * h) @ second.weight.T
    return 4 * h.sum(1, keepdim=True) + 1


def parts(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(file, framework="pt") as opened:
        return {n: opened.get_tensor(n) for n in opened.keys()}, json.loads(opened.metadata()["pyrodrop"])  # noqa: SIM118


def written(file: Path, tensors: dict[str, torch.Tensor], about: Any) -> Path:
    """As an attacker writes it: by safetensors alone, in the form of older versions, which has no checksum."""
    about = {key: value for key, value in about.items() if key != "format"} if isinstance(about, dict) else about
    save_file(tensors, file, metadata={"pyrodrop": json.dumps(about)})
    return file


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("networks") / "good.safetensors", steps())


def test_a_good_file(good: Path, tmp_path: Path) -> None:
    torch.testing.assert_close(read_network(good)(X), by_hand(X))
    again = written(tmp_path / "again.safetensors", *parts(good))
    torch.testing.assert_close(read_network(again)(X), by_hand(X))


@pytest.mark.parametrize(
    "name",
    [
        'a" if open("RAN", "w") else "b', 'a"), open("RAN", "w"), ("', "a', open('RAN', 'w'), '", "a\nprint(1)", "x = 1;",
        "", ".", "a..b", "7", "__class__", "forward", "train", "half", "class", "None", "ü", "a b", "relu_1",
        "layers.0.use.2", "x" * 300,
    ],
)  # fmt: skip
def test_the_name_of_a_layer_is_a_name_and_nothing_else(
    name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tensors, about = parts(good)
    about["steps"][2]["name"] = about["steps"][4]["name"] = name
    network = read_network(written(tmp_path / "named.safetensors", tensors, about))
    torch.testing.assert_close(network(X), by_hand(X))
    assert calls(network) == calls(read_network(good))
    assert not (tmp_path / "RAN").exists()


def calls(network: Any) -> list[str]:
    """What the generated code calls, in order; modules of the network without their names."""
    found = [ast.unparse(n.func) for n in ast.walk(ast.parse(network.code.strip())) if isinstance(n, ast.Call)]
    modules = {f"self.{name}" for name, _ in network.named_modules()}
    return ["a module" if name in modules else name for name in found]


def test_names_that_are_alike_stay_apart() -> None:
    eye = torch.eye(2)
    chain = [
        Affine("relu_1", eye * 2, torch.zeros(2)), Plain(nn.ReLU, {}), Affine("a.b", eye * 3, torch.zeros(2)),
        Affine("a_b", eye * 5, torch.zeros(2)), Affine("standardised_1_loc", eye * 7, torch.zeros(2)),
        Standardised(torch.zeros(2), torch.full((2,), 0.5)), Affine("a.b", eye * 11, torch.zeros(2)),
    ]  # fmt: skip
    torch.testing.assert_close(
        network_of(chain)(torch.tensor([[1.0, -1.0]])), torch.tensor([[2.0 * 3 * 5 * 7 * 2 * 11, 0]])
    )


def changed(where: Any, value: Any) -> Any:
    def change(tensors: dict[str, Any], about: Any) -> None:
        place = about
        for key in where[:-1]:
            place = place[key]
        if value is KeyError:
            del place[where[-1]]
        else:
            place[where[-1]] = value

    return change


def tensor(name: str, value: Any) -> Any:
    def change(tensors: dict[str, Any], about: Any) -> None:
        tensors[name] = value(tensors[name]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(["steps"], {}), "steps must be a list"),
        (changed(["steps"], []), "at least one record"),
        (changed(["steps", 0], "x"), "a list of at least one record"),
        (changed(["steps", 3, "step"], "system"), "step 3: no step of a network is called 'system'"),
        (changed(["steps", 3, "step"], KeyError), "step 3: no step of a network is called 'None'"),
        (changed(["steps", 3, "step"], ["Tanh"]), "step 3: no step"),
        (changed(["steps", 3, "negative_slope"], "exit()"), "step 3: negative_slope of LeakyReLU must be a number"),
        (changed(["steps", 3, "negative_slope"], float("nan")), "must be a number"),
        (changed(["steps", 3, "device"], "cuda"), "step 3: its options must be negative_slope; got"),
        (changed(["steps", 2, "shape"], [6, 3]), r"step 2: the weight must have shape \[6, 3\]; got \[6, 2\]"),
        (changed(["steps", 2, "shape"], "6"), "step 2: the shape of a layer's weight must be a list"),
        (changed(["steps", 2, "name"], 7), "step 2: the name of a layer must be a str; got the int 7"),
        (changed(["steps", 2, "csr"], 1), "step 2: csr says .* must be True or False"),
        (changed(["steps", 2, "stride"], [1]), "step 2: its options must be csr, name; got"),
        (changed(["steps", 4, "shape"], [40, 2**31 - 1]), "step 4: a weight of shape .* GiB"),
        (changed(["steps", 4, "shape"], [40, -6]), "step 4: shape is .* at least|from 0"),
        (changed(["steps", 4, "shape"], [40, 5]), "step 4: places must lie in 0 ... 4; got 1 to 5"),
        (changed(["steps", 6, "columns"], "1"), "step 6: columns is the number of outputs"),
        (changed(["steps", 6, "columns"], -1), "step 6: columns is the number of outputs"),
        (tensor("1.columns", lambda c: c.to(torch.int16) - 5), "step 1: columns must lie in 0"),
        (tensor("1.columns", lambda c: c.float()), "step 1: columns must be one axis of whole numbers"),
        (tensor("4.counts", lambda c: c + 1), "step 4: values and places must have one entry"),
        (tensor("4.values", lambda v: v[:1].contiguous()), "step 4: values and places must have one entry"),
        (tensor("2.weight", lambda w: w * float("inf")), "step 2: weight must consist of finite real numbers"),
        (tensor("2.bias", lambda b: b[:5].contiguous()), r"step 2: the bias must have shape \[6\]; got \[5\]"),
        (tensor("0.scale", lambda s: s * 0), "step 0: scale must be positive"),
        (tensor("0.scale", lambda s: s.long()), "step 0: scale must consist of finite real numbers"),
        (tensor("9.weight", torch.ones(2)), "the tensor '9.weight' belongs to none of its 7 steps"),
        (tensor("weight", torch.ones(2)), "the tensor 'weight' belongs to none"),
        (tensor("3.weight", torch.ones(2)), "step 3: its tensors must be none; got 'weight'"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_refused(change: Any, message: str, good: Path, tmp_path: Path) -> None:
    tensors, about = parts(good)
    change(tensors, about)
    with pytest.raises(ValueError, match=message) as raised:
        read_network(written(tmp_path / "bad.safetensors", tensors, about))
    assert "bad.safetensors" in str(raised.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.more
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_change_of_the_header_is_refused_or_makes_a_network(good: Path, data: st.DataObject) -> None:
    """A ValueError, or a plain module: never an error of another kind."""
    tensors, about = parts(good)
    about = copy.deepcopy(about)
    step = data.draw(st.integers(0, len(about["steps"]) - 1))
    key = data.draw(st.sampled_from([*about["steps"][step], "more"]))
    about["steps"][step][key] = data.draw(JSON)
    file = good.with_name("drawn.safetensors")
    try:
        network = read_network(written(file, tensors, about))
    except ValueError as error:
        message: str | None = str(error)
    else:
        assert isinstance(network, nn.Module)
        message = None
    assert message is None or "drawn.safetensors" in message


def test_a_precision_that_cannot_hold_a_weight_is_refused_when_writing(tmp_path: Path) -> None:
    large = [Affine("a", torch.full((1, 2), 1e5), torch.zeros(1))]
    write_network(tmp_path / "a", large)
    with pytest.raises(ValueError, match=r"the weights of a must be finite as torch.float16; the largest is 100000"):
        write_network(tmp_path / "b", large, bits=16)
    assert not (tmp_path / "b").exists()
