"""Programs with latent variables for every row: an autoencoder, a Markov model, cells, local parameters, and counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyrodrop.analysis.lab.programs.program import Parts


@contextmanager
def _start(dtype: torch.dtype, seed: int) -> Iterator[None]:
    """A context in which new modules have this dtype and the initial weights of this seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(before)


class VAE:
    """A variational autoencoder of binary images, as in Pyro's tutorial. Kingma & Welling (2014)."""

    def __init__(self, pixels: int, latent: int, width: int) -> None:
        self.latent = latent
        self.encoder: nn.Sequential = nn.Sequential(
            nn.Linear(pixels, width), nn.Softplus(), nn.Linear(width, 2 * latent)
        )
        self.decoder: nn.Sequential = nn.Sequential(nn.Linear(latent, width), nn.Softplus(), nn.Linear(width, pixels))

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("images", len(x), subsample_size=64) as rows:
            z = pyro.sample("z", dist.Normal(x.new_zeros(self.latent), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x[rows])

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("images", len(x), subsample_size=64) as rows:
            loc, log_scale = self.encoder(x[rows]).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def vae(dtype: torch.dtype) -> Parts:
    """500 noisy images of 12 x 12 pixels, each of a horizontal and a vertical bar."""
    random = torch.Generator().manual_seed(7)
    bars = torch.eye(12)[torch.randint(12, (500, 2), generator=random)]
    image = torch.maximum(bars[:, 0, :, None], bars[:, 1, None, :])
    x = torch.bernoulli(0.05 + 0.9 * image, generator=random).flatten(1).to(dtype)
    with _start(dtype, 7):
        parts = VAE(144, latent=8, width=64)
    return parts.model, parts.guide, {"x": x}


class Transition(nn.Module):
    """Distribution of z_t given z_{t-1}: a gated mean, and a scale. Krishnan, Shalit & Sontag (2017), section 5."""

    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.gate: nn.Sequential = nn.Sequential(
            nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, latent), nn.Sigmoid()
        )
        self.proposed: nn.Sequential = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, latent))
        self.linear: nn.Linear = nn.Linear(latent, latent)
        self.scale: nn.Linear = nn.Linear(latent, latent)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        gate, proposed = self.gate(z), self.proposed(z)
        return (1 - gate) * self.linear(z) + gate * proposed, nn.functional.softplus(self.scale(proposed.relu()))


class Combiner(nn.Module):
    """Distribution of z_t given z_{t-1} and the state of a recurrent network after x_T, ..., x_{t+1}, x_t."""

    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.hidden: nn.Linear = nn.Linear(latent, width)
        self.loc: nn.Linear = nn.Linear(width, latent)
        self.scale: nn.Linear = nn.Linear(width, latent)

    def forward(self, z: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        h = (torch.tanh(self.hidden(z)) + read) / 2
        return self.loc(h), nn.functional.softplus(self.scale(h))


class DeepMarkov(nn.Module):
    """A deep Markov model of sequences of different lengths, after Pyro's example.

    Krishnan, Shalit & Sontag (2017), Structured Inference Networks for Nonlinear State Space Models.
    """

    def __init__(self, features: int, latent: int, width: int) -> None:
        super().__init__()
        self.transition: Transition = Transition(latent, width)
        self.combiner: Combiner = Combiner(latent, width)
        self.emitter: nn.Sequential = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, features))
        self.reader: nn.GRUCell = nn.GRUCell(features, width)
        self.first: nn.Parameter = nn.Parameter(torch.zeros(latent))
        self.first_guess: nn.Parameter = nn.Parameter(torch.zeros(latent))

    def model(self, x: Tensor, mask: Tensor) -> None:
        """x is ``[sequences, time, features]``, and mask ``[sequences, time]`` True where there is an observation."""
        pyro.module("markov", self)
        with pyro.plate("sequences", len(x)):
            z = self.first.expand(len(x), -1)
            for t in pyro.markov(range(x.shape[1])):
                loc, scale = self.transition(z)
                z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1).mask(mask[:, t]))
                seen = dist.Bernoulli(logits=self.emitter(z)).to_event(1)
                pyro.sample(f"x_{t}", seen.mask(mask[:, t]), obs=x[:, t])

    def guide(self, x: Tensor, mask: Tensor) -> None:
        pyro.module("markov", self)
        read, states = x.new_zeros(len(x), self.reader.hidden_size), []
        for t in reversed(range(x.shape[1])):  # the state changes only within a sequence
            read = torch.where(mask[:, t, None], self.reader(x[:, t], read), read)
            states.append(read)
        with pyro.plate("sequences", len(x)):
            z = self.first_guess.expand(len(x), -1)
            for t in pyro.markov(range(x.shape[1])):
                loc, scale = self.combiner(z, states[-1 - t])
                z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1).mask(mask[:, t]))


def markov(dtype: torch.dtype) -> Parts:
    """Ten sequences of 8 to 20 noisy steps on a circle of 8 notes, upwards or downwards."""
    random = torch.Generator().manual_seed(8)
    lengths, start = torch.randint(8, 21, (10, 1), generator=random), torch.randint(8, (10, 1), generator=random)
    direction = 2 * torch.randint(2, (10, 1), generator=random) - 1
    notes = torch.eye(8)[(start + direction * torch.arange(20)) % 8]
    x = torch.bernoulli(0.05 + 0.9 * notes, generator=random).to(dtype)
    with _start(dtype, 8):
        parts = DeepMarkov(8, latent=5, width=16)
    return parts.model, parts.guide, {"x": x, "mask": torch.arange(20) < lengths}


class Cells(nn.Module):
    """Counts of genes in cells: a latent state and a size per cell.

        z_n ~ Normal(0, I),   size_n ~ LogNormal,   counts_n ~ NegativeBinomial of mean size_n softmax(decoder(z_n))

    Lopez et al. (2018), Deep generative modeling for single-cell transcriptomics, without zero inflation and batches.
    """

    def __init__(self, genes: int, latent: int, width: int, subsample: int) -> None:
        super().__init__()
        self.latent: int = latent
        self.subsample: int = subsample
        self.decoder: nn.Sequential = nn.Sequential(
            nn.Linear(latent, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, genes)
        )
        self.encoder: nn.Sequential = nn.Sequential(
            nn.Linear(genes, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.z: nn.Linear = nn.Linear(width, 2 * latent)
        self.size: nn.Linear = nn.Linear(width, 2)

    def model(self, counts: Tensor) -> None:
        pyro.module("cells", self)
        ones = counts.new_ones(counts.shape[1])
        dispersion = pyro.param("dispersion", lambda: 5 * ones, constraint=constraints.positive)
        usual = counts.sum(1).log()
        with pyro.plate("cells", len(counts), subsample_size=self.subsample) as rows:
            z = pyro.sample("z", dist.Normal(counts.new_zeros(self.latent), 1.0).to_event(1))
            size = pyro.sample("size", dist.LogNormal(usual.mean(), usual.std()))
            mean = size.unsqueeze(-1) * self.decoder(z).softmax(-1)
            logits = (mean + 1e-8).log() - dispersion.log()
            pyro.sample("counts", dist.NegativeBinomial(dispersion, logits=logits).to_event(1), obs=counts[rows])

    def guide(self, counts: Tensor) -> None:
        pyro.module("cells", self)
        with pyro.plate("cells", len(counts), subsample_size=self.subsample) as rows:
            hidden = self.encoder(counts[rows].log1p())
            loc, scale = self.z(hidden).chunk(2, -1)
            size_loc, size_scale = self.size(hidden).unbind(-1)
            pyro.sample("size", dist.LogNormal(4 + size_loc, nn.functional.softplus(size_scale)))
            pyro.sample("z", dist.Normal(loc, nn.functional.softplus(scale)).to_event(1))


def _counts(dtype: torch.dtype) -> Tensor:
    """Counts of 50 genes in 2,000 cells of four kinds."""
    random = torch.Generator().manual_seed(9)
    kinds = torch.randn(4, 50, generator=random).softmax(-1)
    size = 100 * (0.3 * torch.randn(2000, 1, generator=random)).exp()
    return torch.poisson(size * kinds[torch.randint(4, (2000,), generator=random)], generator=random).to(dtype)


def cells(dtype: torch.dtype) -> Parts:
    """Single cells with an amortised guide: the method of scVI, in minibatches of 128."""
    with _start(dtype, 9):
        parts = Cells(50, latent=6, width=32, subsample=128)
    return parts.model, parts.guide, {"counts": _counts(dtype)}


def local(dtype: torch.dtype) -> Parts:
    """Poisson factor analysis with separate parameters for every cell; a step changes only those of its minibatch."""
    latent, subsample = 4, 128

    def model(counts: Tensor) -> None:
        with pyro.plate("genes", counts.shape[1], dim=-1):
            loading = pyro.sample("loading", dist.Normal(counts.new_zeros(latent), 0.5).to_event(1))
            rate = pyro.sample("rate", dist.Gamma(counts.new_ones(()), 0.5))
        with pyro.plate("cells", len(counts), subsample_size=subsample, dim=-2) as rows:
            z = pyro.sample("z", dist.Normal(counts.new_zeros(latent), 1.0).to_event(1))
            with pyro.plate("counted", counts.shape[1], dim=-1):
                effect = (z * loading).sum(-1)
                pyro.sample("counts", dist.Poisson(rate * effect.exp()), obs=counts[rows])

    def guide(counts: Tensor) -> None:
        genes, positive = counts.shape[1], constraints.softplus_positive
        with pyro.plate("genes", genes, dim=-1):
            spread = pyro.param("loading_scale", lambda: counts.new_full((genes, latent), 0.1), positive, event_dim=1)
            start = (
                0.1 * torch.eye(latent, dtype=counts.dtype, device=counts.device).repeat(genes // latent + 1, 1)[:genes]
            )
            loc = pyro.param("loading_loc", lambda: start, event_dim=1)
            pyro.sample("loading", dist.Normal(loc, spread).to_event(1))
            alpha = pyro.param("rate_alpha", lambda: counts.new_full((genes,), 20.0), constraints.positive, event_dim=0)
            mean = pyro.param("rate_mean", lambda: counts.mean(0) + 0.1, constraints.positive, event_dim=0)
            pyro.sample("rate", dist.Gamma(alpha, alpha / mean))
        with pyro.plate("cells", len(counts), subsample_size=subsample, dim=-2):
            full = (len(counts), 1, latent)
            loc = pyro.param("z_loc", lambda: counts.new_zeros(full), event_dim=1)
            scale = pyro.param("z_scale", lambda: counts.new_full(full, 0.1), positive, event_dim=1)
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))

    return model, guide, {"counts": _counts(dtype)}


def counts(dtype: torch.dtype, cells: int = 100, genes: int = 30) -> Parts:
    """Counts of genes in cells, with all cells in every step, and parameters for the latent variables of every cell.

        z_n ~ Normal(0, I),   size_n ~ LogNormal,   counts_ng ~ GammaPoisson of mean size_n exp(base_g + z_n w_g)

    A negative binomial factor analysis. Data are drawn from a Poisson model with the same means.
    """
    latent = 10

    def model(counts: Tensor) -> None:
        zero, zeros = counts.new_zeros(()), counts.new_zeros(latent)
        with pyro.plate("genes", counts.shape[1], dim=-1):
            w = pyro.sample("w", dist.Normal(zeros, 0.5).to_event(1))
            base = pyro.sample("base", dist.Normal(zero, 1.0))
            concentration = pyro.sample("concentration", dist.LogNormal(zero, 1.0))
        with pyro.plate("cells", len(counts), dim=-2):
            z = pyro.sample("z", dist.Normal(zeros, 1.0).to_event(1))
            size = pyro.sample("size", dist.LogNormal(zero, 0.5))
            with pyro.plate("counted", counts.shape[1], dim=-1):
                mean = size * (base + z.squeeze(-2) @ w.mT).exp()
                pyro.sample("counts", dist.GammaPoisson(concentration, concentration / mean), obs=counts)

    random = torch.Generator().manual_seed(10)
    z, w = torch.randn(cells, latent, generator=random), 0.3 * torch.randn(latent, genes, generator=random)
    size = (0.5 * torch.randn(cells, 1, generator=random)).exp()
    observed = torch.poisson(size * (z @ w + torch.randn(genes, generator=random)).exp(), generator=random).to(dtype)
    return model, AutoNormal(model, init_scale=0.1), {"counts": observed}
