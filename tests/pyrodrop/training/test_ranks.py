"""Training by several processes: in distribution that of one process, and the same on all ranks.

The processes are those of ``on_ranks.py``, which writes what they have computed.
"""

from __future__ import annotations

import dataclasses
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
import torch.distributed as dist

from pyrodrop.training import ranks

WORK = Path(__file__).parent / "on_ranks.py"
ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
QUICK = "equal gradients batch_norm reading starts ends checkpoints step_by_step fails"
CPU = torch.device("cpu")
Results = Callable[[str], list[dict[str, Any]]]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")


def ran(folder: Path, names: str) -> Results:
    command = [sys.executable, "-P", str(WORK), str(folder), *names.split()]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)

    def results(name: str) -> list[dict[str, Any]]:
        files = [folder / f"{name}-{rank}.json" for rank in range(2)]
        assert all(file.exists() for file in files), done.stdout + done.stderr
        of_ranks = [json.loads(file.read_text()) for file in files]
        assert not any("error" in result for result in of_ranks), of_ranks
        return of_ranks

    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return ran(tmp_path_factory.mktemp("ranks"), QUICK)


def close(actual: Any, expected: Any, **tolerance: float) -> None:
    torch.testing.assert_close(torch.tensor(actual).double(), torch.tensor(expected).double(), **tolerance)


def check_equal(of_ranks: list[dict[str, Any]]) -> None:
    for name, cell in of_ranks[0].items():
        close(cell["together"], cell["alone"], rtol=1e-10, atol=1e-12)
        assert of_ranks[1][name]["together"] == cell["together"]
        assert cell["ranks"] == 2


def test_without_noise_ranks_equal_one_process(results: Results) -> None:
    """In float64 to rounding: the same order of the rows, and the mean of the gradients."""
    check_equal(results("equal"))


def test_gradients_of_ranks_have_the_mean_of_the_whole_gradient(results: Results) -> None:
    """Of linear regression, in closed form: precision X^T (X m - y) + m / prior^2. Two draws instead of one halve the
    variance: the noise of the ranks is independent."""
    run = results("gradients")[0]
    x, y, loc = (torch.tensor(run[name]) for name in ("x", "y", "loc"))
    of_loc = 2.0 * x.T @ (x @ loc[:, None] - y)[:, 0] + loc / 0.8**2
    places = {name: slice(2 * i, 2 * i + 2) for i, name in enumerate(run["names"])}
    place = next(place for name, place in places.items() if "loc" in name)
    drawn = {name: torch.tensor(run[name])[1:, place] for name in ("together", "alone")}
    for gradients in drawn.values():
        error = gradients.std(0) / math.sqrt(len(gradients))
        assert bool(((gradients.mean(0) - of_loc).abs() < 4.5 * error).all())
    ratio = drawn["together"].var(0).sum() / drawn["alone"].var(0).sum()
    assert 0.35 < float(ratio) < 0.7


def test_running_statistics_are_averaged(results: Results) -> None:
    of_ranks = results("batch_norm")
    mean = torch.tensor([result["of the rank"] for result in of_ranks]).mean(0)
    for result in of_ranks:
        close(result["mean"], mean.tolist(), rtol=1e-4, atol=1e-6)
        assert result["numbers"] == of_ranks[0]["numbers"]


def test_ranks_read_their_own_rows(results: Results) -> None:
    for result in results("reading"):
        assert result["read"] == result["tensors"]
        assert "the process alone (distributed=False) where a loader makes the minibatches" in result["loader"]


def test_all_start_from_rank_0_which_alone_shows_progress(results: Results) -> None:
    first, second = results("starts")
    assert first["numbers"] == second["numbers"]
    assert [line for line in first["log"] if "training on" in line] == ["training on 2 ranks"]
    assert not any("training on" in line for line in second["log"])
    assert "/9 [" in first["bar"]
    assert second["bar"] == ""


def test_all_end_together(results: Results) -> None:
    """Where one of them has NaN, and where `after_epoch` of rank 0 returns True."""
    first, second = results("ends")
    assert first["broken"]["kind"] == second["broken"]["kind"] == "FloatingPointError"
    assert first["broken"]["text"] == second["broken"]["text"]
    assert first["steps"] == second["steps"] == 8


def test_a_rank_that_fails_is_missed_by_the_others(results: Results) -> None:
    first, second = results("fails")
    assert second["kind"] == "ValueError"
    assert "must be the same on all 2 ranks; got on rank 1: seed is 1 here and 0 on rank 0" in second["text"]
    assert first["kind"] in ("RuntimeError", "DistBackendError", "DistNetworkError")
    assert first["seconds"] < 60


def test_a_checkpoint_continues_where_it_was(results: Results) -> None:
    """With as many ranks or another number. Rank 0 writes it."""
    first, second = results("checkpoints")
    for name in ("two", "two by one", "one by two"):
        close(first[name], first["whole"], rtol=1e-5, atol=1e-6)
        assert first[f"{name} wrote"]
    assert first["two"] == second["two"] == second["whole"]
    assert not second["two wrote"]
    assert "ranks is 2 there and 1 here" in first["two by one logged"]
    assert "ranks is 1 there and 2 here" in first["one by two logged"]
    assert "ranks is" not in first["two logged"]


def test_step_by_step_is_the_same_training(results: Results) -> None:
    """A state of rank 0 continues on both, where it was on rank 0 and with new noise on the other."""
    first, second = results("step_by_step")
    for result in (first, second):
        assert result["steps"] == result["fit"]
        assert result["again"] == first["again"]
    assert first["random"][0] == first["random"][1]
    assert len({*first["random"], *second["random"]}) == 3


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (
            {"seed": "1", "steps": "9"},
            "got on rank 1: seed is 1 here and 0 on rank 0. Processes that are to train alone",
        ),
        ({"steps": "9", "lr of a": "2"}, "seed is absent here and 0 on rank 0; lr of a is 2 here and absent on rank 0"),
    ],
)
def test_a_rank_names_what_differs_from_rank_0(mine: dict[str, str], message: str) -> None:
    @dataclasses.dataclass(frozen=True)
    class Second(ranks.Ranks):
        def of_first(self, value: Any) -> Any:
            return {"seed": "0", "steps": "9"}

    Second(1, 2, CPU).check_same({"steps": "9", "seed": "0"})
    with pytest.raises(ValueError, match=message):
        Second(1, 2, CPU).check_same(mine)


def test_a_process_without_a_group_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(ValueError, match="distributed=True needs several ranks.*torchrun"):
        ranks.join(True, CPU)
    assert ranks.join(None, CPU).size == ranks.join(False, CPU).size == 1


def test_a_group_without_a_backend_for_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "is_initialized": True,
        "get_rank": 0,
        "get_world_size": 2,
        "get_backend_config": "cuda:nccl",
    }.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    with pytest.raises(ValueError, match="must have a backend for the device, cpu.*got one with cuda:nccl"):
        ranks.join(None, CPU)


def test_every_rank_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="this machine has 2.*got local rank 2"):
        ranks._local(torch.device("cuda"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks._local(torch.device("cuda")) == torch.device("cuda", 1)
    assert ranks._local(CPU) == CPU


@pytest.mark.slow
def test_compiled_steps_of_ranks_equal_one_process(tmp_path: Path) -> None:
    check_equal(ran(tmp_path, "equal_compiled")("equal_compiled"))


@pytest.mark.slow
def test_a_script_under_torchrun_trains_together(tmp_path: Path) -> None:
    """The same script alone and under torchrun; and one of which a rank fails."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch, pyrodrop\n"
        "from pyrodrop import guides, likelihoods, models, priors\n"
        "torch.set_default_dtype(torch.float64)\n"
        "torch.manual_seed(0)\n"
        "x = torch.linspace(-1, 1, 20)[:, None]\n"
        "model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))\n"
        "if sys.argv[1:] == [os.environ.get('RANK')]:\n"
        "    raise ArithmeticError('here')\n"
        "fit = pyrodrop.fit(model, guides.Point(model), (x, x**2), steps=20, progress=False)\n"
        "print(fit.settings['ranks'], f'{float(fit.losses.sum()):.9f}')\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
        )

    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    alone, together = run(str(script)).stdout.split(), run(*launcher, str(script)).stdout.split()
    assert together == ["2", alone[1], "2", alone[1]]
    assert alone[0] == "1"
    failed = run(*launcher, str(script), "1")
    assert failed.returncode != 0
    assert "ArithmeticError: here" in failed.stderr


@pytest.mark.gpu
def test_ranks_on_gpus_use_nccl(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("two ranks need two GPUs")
    for result in ran(tmp_path, "on_gpus")("on_gpus"):
        close(result["together"], result["alone"], rtol=1e-4, atol=1e-5)
