"""The alpha-divergence objective of dropout.

    loss = -(1 / alpha) sum_n ln[(1 / K) sum_k p(y_n | x_n, W_k)^alpha] + KL(q || prior),     W_1, ..., W_K ~ q

Li & Gal (2017), Dropout Inference in Bayesian Neural Networks with Alpha-divergences, arXiv:1703.02914, section 4: the
Monte Carlo form of the BB-alpha energy for many data, up to their constant ln K / alpha per row. For alpha -> 0 it is minus
the ELBO; for alpha = 1 it has the log density of each row under the mixture of K draws. As a sum over rows it can be
estimated from minibatches, with noise per row as in their nn.Dropout.

For alpha > 0 minus the loss is no bound on the evidence. It rewards the mixture of the draws more than each draw, so that
posteriors are wider. With K = 1 it would be minus the one-draw estimate of the ELBO, whatever alpha.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from pyrodrop.arguments import count, real
from pyrodrop.elbo import rows_and_divergence


class AlphaDivergence(Trace_ELBO):  # type: ignore[misc]
    """A loss object for ``fit(objective=...)`` and Pyro's `SVI`, of models with one observed site.

    Args:
        alpha: the order of the divergence, in (0, 1].
        num_particles: K, the number of draws for each step, at least 2; a step costs about K times as much.

    Raises:
        ValueError: `alpha` or `num_particles` is out of range; when the loss is called, the model does not have exactly one
            observed site.
        TypeError: an argument is no number.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
        >>> loss = pyrodrop.AlphaDivergence(0.5, num_particles=5)
        >>> fit = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1), (x, x**2), steps=5, objective=loss)
        >>> fit.objective(5).convention.kind
        'objective'
    """

    def __init__(self, alpha: float = 0.5, num_particles: int = 10) -> None:
        self.alpha: float = real(alpha, "alpha", "the order of the divergence", above=0, most=1)
        super().__init__(
            num_particles=count(num_particles, "num_particles", "the number of draws for each step", least=2)
        )

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The loss, as a tensor with its gradient."""
        draws = [rows_and_divergence(model, guide, *args, **kwargs) for _ in range(self.num_particles)]
        densities = torch.stack([rows for rows, _, _ in draws])
        mixture = torch.logsumexp(self.alpha * densities, 0) - math.log(self.num_particles)
        scale = draws[0][1]
        return torch.stack([kl for _, _, kl in draws]).mean() - (scale * mixture).sum() / self.alpha

    @torch.no_grad()
    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """An estimate of the loss."""
        return self.differentiable_loss(model, guide, *args, **kwargs)

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """An estimate of the loss; its gradient is added to that of the parameters."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()
