"""Training by several processes: equal to one process, the same on all ranks, and no rank is left waiting.

The processes are those of ``work.py``, which writes what they have found.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrodrop import ranks
from pyrodrop.ranks import joining

WORK = Path(__file__).parent / "work.py"
ROOT = Path(__file__).parents[3]
QUICK = (
    "equal:3 rows:3 checkpoints:3 equal:2 equal_in_parts:2 gradients:2 rows:2 errors:2 disagreements:2 starts:2 "
    "checkpoints:2 other_number:2 unwritable:2 step_by_step:2 autoguides:2 batch_norm:2 alone:2 evaluated:2 reading:2 lost:2"
)
Results = Callable[[str, int], list[dict[str, Any]]]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")


def ran(folder: Path, what: str) -> Results:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", str(WORK), str(folder), *what.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1400, check=False)

    def results(name: str, size: int) -> list[dict[str, Any]]:
        files = [folder / f"{name}-{size}-{rank}.json" for rank in range(size)]
        assert all(file.exists() for file in files), done.stdout + done.stderr
        found = [json.loads(file.read_text()) for file in files]
        assert not any("error" in own for own in found), found
        return found

    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return ran(tmp_path_factory.mktemp("ranks"), QUICK)


def close(one: Any, two: Any, **tolerance: float) -> None:
    torch.testing.assert_close(torch.tensor(one).double(), torch.tensor(two).double(), **tolerance)


def check_equal(found: list[dict[str, Any]], size: int) -> None:
    for name, cell in found[0].items():
        close(cell["together"], cell["alone"], rtol=1e-10, atol=1e-12)
        assert all(own[name]["together"] == cell["together"] for own in found)
        assert cell["settings"] == [name.split(",")[0], size]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [2, 3])
def test_without_noise_ranks_equal_one_process(results: Results, size: int) -> None:
    """In float64 to rounding, with SGD on all rows."""
    check_equal(results("equal", size), size)


def test_parts_of_ranks_equal_one_process(results: Results) -> None:
    for own in results("equal_in_parts", 2):
        close(own["together"], own["alone"], rtol=1e-10, atol=1e-12)


def test_gradients_of_ranks_have_the_mean_of_the_whole_gradient(results: Results) -> None:
    """Of linear regression, in closed form: precision X^T (X m - y) + m / prior^2, and for s the gradient of the KL and of
    the expected squared error. Two draws instead of one halve the variance."""
    found = results("gradients", 2)[0]
    x, y, loc = (torch.tensor(found[name]) for name in ("x", "y", "loc"))
    of_loc = 2.0 * x.T @ (x @ loc[:, None] - y)[:, 0] + loc / 0.8**2
    places = {name: slice(2 * i, 2 * i + 2) for i, name in enumerate(found["names"])}
    place = next(own for name, own in places.items() if "loc" in name)
    drawn = {name: torch.tensor(found[name])[1:, place] for name in ("together", "alone")}
    for gradients in drawn.values():
        error = gradients.std(0) / math.sqrt(len(gradients))
        assert bool(((gradients.mean(0) - of_loc).abs() < 4.5 * error).all())
    ratio = drawn["together"].var(0).sum() / drawn["alone"].var(0).sum()
    assert 0.35 < float(ratio) < 0.7


@pytest.mark.parametrize("size", [2, 3])
def test_every_epoch_deals_every_row_once(results: Results, size: int) -> None:
    found = results("rows", size)
    epochs = []
    for epoch in range(3):
        steps = range(4 * epoch, 4 * epoch + 4)
        minibatches = [[own["rows"][step] for own in found] for step in steps]
        last = minibatches.pop()
        assert all(one == last[0] for one in last)  # one row: of rank 0; the others evaluate it with share 0
        assert all(len(rows) in ((1, 2) if size == 2 else (1,)) for minibatch in minibatches for rows in minibatch)
        epochs.append([row for minibatch in minibatches for rows in minibatch for row in rows] + last[0])
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_finite_on_one_rank_stops_all(results: Results, rank: int) -> None:
    found = [own[f"NaN on rank {rank}"] for own in results("errors", 2)]
    assert [own["saw"] for own in found] == [rank == 0, rank == 1]
    for own in found:
        assert own["kind"] == "FloatingPointError"
        assert own["text"] == found[0]["text"]
        assert "stopped being finite at step 1" in own["text"]


@pytest.mark.parametrize("when", ["before a step", "in a step", "after an epoch", "at the end"])
def test_an_exception_on_one_rank_stops_the_others(results: Results, when: str) -> None:
    found = [own[when] for own in results("errors", 2)]
    where = next(rank for rank, own in enumerate(found) if own["kind"] != "StoppedElsewhere")
    assert found[where]["kind"] in ("ArithmeticError", "KeyError")
    other = found[1 - where]
    assert other["kind"] == "StoppedElsewhere"
    assert f"rank {where} stopped with {found[where]['kind']}" in other["text"]
    assert all(own["seconds"] < 60 for own in found)
    assert len({tuple(own["still together"]["losses"]) for own in results("errors", 2)}) == 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("data", r"data is \w+ \(10 rows\) on rank 0 and \w+ \(10 rows\) on rank 1"),
        ("seed", "seed is 0 on rank 0 and 1 on rank 1"),
        ("steps", "steps is 9 on rank 0 and 10 on rank 1"),
        ("model", "widths.1 is 3.0 on rank 0 and 4.0 on rank 1"),
        ("prior", "scale is 0.5 on rank 0 and 0.7 on rank 1"),
        ("batch", "at least their number, 2; got 1 of 10 rows"),
    ],
)
def test_ranks_that_differ_are_refused_on_all(results: Results, what: str, words: str) -> None:
    found = [own[what] for own in results("disagreements", 2)]
    assert found[0]["text"] == found[1]["text"]
    for own in found:
        with pytest.raises(ValueError, match=words):
            raise {"ValueError": ValueError}[own["kind"]](own["text"])


def test_all_start_from_rank_0_which_alone_shows_progress(results: Results) -> None:
    first, second = results("starts", 2)
    assert first["numbers"] == second["numbers"]
    assert (first["ranks"], second["ranks"]) == (2, 2)
    said = [[line for line in own["log"] if "training on" in line] for own in (first, second)]
    assert said == [["training on 2 ranks by gloo"], []]
    assert "/9 [" in first["bar"]  # a quick run ends before the bar is drawn a second time
    assert second["bar"] == ""


@pytest.mark.parametrize("size", [2, 3])
def test_a_checkpoint_continues_to_the_same_bits(results: Results, size: int) -> None:
    found = results("checkpoints", size)
    for rank, own in enumerate(found):
        assert own["again"] == own["whole"] == found[0]["whole"]
        assert own["wrote"] == (rank == 0)
        assert not any("new noise" in line for line in own["log"])


@pytest.mark.unshifted
def test_another_number_of_ranks_continues_with_a_note(results: Results) -> None:
    """The epoch of the checkpoint goes on without repetition."""
    found = results("other_number", 2)
    rows = [row for step in (0, 1) for own in found for row in own["rows"][step]]
    # the order that one process draws from the seed 0: two minibatches of 3 rows by it, then one of 3 and one of 1
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0)).tolist()
    assert sorted(rows[:3]) == sorted(order[6:9])
    assert rows[3:] == [order[9], order[9]]
    assert any("of 1 rank(s)" in line and "continues with new noise" in line for line in found[0]["log"])
    assert any("of 3 rank(s)" in line and "continues with new noise" in line for line in found[0]["log of three"])
    assert found[0]["numbers"] == found[1]["numbers"]
    assert found[0]["random"] != found[1]["random"]


def test_a_file_that_rank_0_cannot_write_stops_all(results: Results) -> None:
    first, second = results("unwritable", 2)
    assert first["kind"] == "FileNotFoundError"
    assert "rank 0 stopped with FileNotFoundError" in second["text"]


def test_step_by_step_gives_the_same_bits(results: Results) -> None:
    found = results("step_by_step", 2)
    for own in found:
        assert own["steps"] == own["fit"] == own["again"]
        assert own["of rank 0"] == found[0]["of rank 0"]
        assert own["of rank 0"] != own["fit"]
        assert "the number of steps done is 4 on rank 0 and 3 on rank 1" in own["older"]["text"]
    assert not any("new noise" in line for line in found[0]["log"])
    assert any("the state is of rank 0 of 2" in line and "new noise" in line for line in found[1]["log"])


def test_autoguides_train_on_ranks(results: Results) -> None:
    for own in results("autoguides", 2):
        close(own["together"], own["alone"], rtol=1e-10, atol=1e-12)


def test_running_statistics_are_averaged(results: Results) -> None:
    found = results("batch_norm", 2)
    mean = torch.tensor([own["own"] for own in found]).mean(0)
    for own in found:
        close(own["mean"], mean.tolist(), rtol=1e-4, atol=1e-6)
        assert own["batches"] == 1
        assert own["numbers"] == found[0]["numbers"]


def test_ranks_read_their_own_rows(results: Results) -> None:
    """With the bits of tensors. A loader, which makes the minibatches itself, is refused."""
    for own in results("reading", 2):
        assert own["read"] == own["tensors"]
        assert "the process alone (distributed=False) where a loader makes the minibatches" in own["loader"]


def test_ranks_can_train_alone(results: Results) -> None:
    first, second = results("alone", 2)
    assert len(second["numbers"]) == len(first["numbers"]) + 12  # four steps more


def test_estimates_and_predictions_are_those_of_one_process(results: Results) -> None:
    for own in results("evaluated", 2):
        assert own["shared"]["elbo"] == own["alone"]["elbo"]
        for name in ("draws", "mean", "moments", "one point"):
            close(own["shared"][name], own["alone"][name], rtol=1e-12, atol=1e-12)
        texts = {name: error["text"] for name, error in own["refused"].items()}
        assert "seed is 0 on rank 0 and 1 on rank 1" in texts["seed"]
        assert "data is" in texts["data"]
        assert "x is" in texts["x"]
        assert "the fit is" in texts["other fits"]
        assert "noise per point cannot be shared" in texts["per point"]


def test_a_rank_that_is_killed_is_missed(tmp_path_factory: pytest.TempPathFactory, results: Results) -> None:
    results("alone", 2)  # all is done
    file = next(Path(str(tmp_path_factory.getbasetemp())).glob("ranks*/lost-2-0.json"))
    own = json.loads(file.read_text())
    assert own["kind"] == "Lost"
    assert "has lost the others" in own["text"]
    assert own["seconds"] < 60


def test_distributed_needs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="distributed=True needs several ranks.*torchrun"):
        ranks.join(True, torch.device("cpu"))
    assert ranks.join(None, torch.device("cpu")).size == 1


def test_two_ranks_on_one_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match="got GPU 1 of here for the ranks 1 and 2"):
        joining._check_gpus([("here", 0), ("here", 1), ("here", 1)])
    joining._check_gpus([("here", 0), ("there", 0)])


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["equal_compiled"])
def test_compiled_steps_of_ranks_equal_one_process(tmp_path: Path, name: str, size: int) -> None:
    check_equal(ran(tmp_path, f"{name}:{size}")(name, size), size)


@pytest.mark.slow
def test_data_in_a_file_are_not_copied(tmp_path: Path) -> None:
    """Checks, fingerprint and training read x block by block: 192 MB of a file take less than 100 MB of memory."""
    for own in ran(tmp_path, "mapped:2")("mapped", 2):
        assert max(own.values()) < 100


@pytest.mark.slow
def test_a_script_under_torchrun_trains_together(tmp_path: Path) -> None:
    """The same script alone and under torchrun; and what the log says of it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import logging, sys, torch, pyrodrop\n"
        "from pyrodrop import guides, likelihoods, models, priors\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "torch.set_default_dtype(torch.float64)\n"
        "torch.manual_seed(0)\n"
        "x = torch.linspace(-1, 1, 20)[:, None]\n"
        "model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))\n"
        "fit = pyrodrop.fit(model, guides.Point(model), (x, x**2), steps=20, progress=False)\n"
        "print(fit.settings['ranks'], f'{float(fit.losses.sum()):.9f}')\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    said = []
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        command = [sys.executable, "-P", *launcher, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        said.append(done)
    alone, together = (one.stdout.split() for one in said)
    assert together == ["2", alone[1], "2", alone[1]]
    assert alone[0] == "1"
    assert "training on 2 ranks by gloo" in said[1].stderr
    assert "training on" not in said[0].stderr


@pytest.mark.gpu
def test_ranks_on_gpus_use_nccl(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("two ranks need two GPUs")
    found = ran(tmp_path, "on_gpus:2")("on_gpus", 2)
    for own in found:
        assert own["backend"] == "nccl"
        close(own["together"], own["alone"], rtol=1e-4, atol=1e-5)
