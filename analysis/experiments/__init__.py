"""The experiments of ``pyrodrop run``: one module or package each, with a function `run`, and an entry in `JOBS`."""

from __future__ import annotations

from pyrodrop.analysis.experiments.job import Job
from pyrodrop.names import known

__all__ = ["JOBS", "Job", "job"]

JOBS = {
    "co2": Job(
        "Mauna Loa CO2: uncertainty of dropout networks and Gaussian processes (Gal & Ghahramani 2016, figure 2)"
    ),
    "kingma-table1": Job("variance of gradient estimators on MNIST (Kingma, Salimans & Welling 2015, table 1)"),
    "kingma-fig1a": Job("test error by width of seven dropout methods on MNIST (Kingma et al. 2015, figure 1a)"),
    "kingma-fig1b": Job("test error by size of seven dropout methods on CIFAR-10 (Kingma et al. 2015, figure 1b)"),
    "estimators": Job("shared, per-example, local and flipout gradients at equal wall time on MNIST"),
    "rotated-digit": Job("LeNet-5 on a rotated digit: softmax, entropy, calibration (Gal & Ghahramani 2016, figure 4)"),
    "sparse": Job(
        "sparse LeNets on MNIST: pruning, compression, test error (Molchanov, Ashukha & Vetrov 2017, table 1)"
    ),
    "boston-ard": Job("sparse variational dropout on Boston housing by the weight of the KL divergence (pytorch_ard)"),
    "concrete": Job(
        "concrete dropout: error, uncertainty and learned rates on synthetic data (Gal, Hron & Kendall 2017)"
    ),
    "references": Job("exact posteriors of six small networks by sampling, and the distance of every guide from them"),
    "peers": Job("other packages on the problems whose exact posterior is known: distances and core-seconds"),
    "critiques": Job(
        "is dropout Bayesian? Osband (2016), Foong et al. (2020) and Verdoja & Kyrki (2020), repeated on one page"
    ),
    "remedies": Job("what helps: faults of dropout beside their remedies, with three seeds and their cost"),
    "sbc": Job(
        "simulation-based calibration of a known posterior and of four guides (Talts et al. 2018; Yao et al. 2018)"
    ),
    "solar": Job("solar irradiance in 5 years: an LSTM with dropout, persistence and ridge regression"),
    "active-learning": Job(
        "labels to 90 % on MNIST by entropy, BALD and BatchBALD; naval, where asking does harm (Foong et al. 2020)"
    ),
    "tuning": Job("the drop rate and the scale of the prior, tuned by Optuna with pruning on a UCI set"),
    "published": Job("published figures beside ours: which agree, and of each other one why not"),
    "uci": Job("nine UCI regression sets, all splits: dropout and other posteriors (Gal & Ghahramani 2016, table 1)"),
}


def job(name: str) -> Job:
    """The job of this name.

    Raises:
        ValueError: no job has this name; the message suggests the most similar one.
    """
    return JOBS[known(name, JOBS, "job")].named(name)
