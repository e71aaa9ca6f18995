"""Everyday Pyro programs, written as users of Pyro write them. To add a program, write a function and a line here."""

from __future__ import annotations

from functools import partial

from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO

from pyrodrop.analysis.lab.programs.amortised import cells, counts, local, markov, vae
from pyrodrop.analysis.lab.programs.mixtures import marginal_mixture, mixture, topics
from pyrodrop.analysis.lab.programs.program import Program
from pyrodrop.analysis.lab.programs.regressions import hierarchical, logistic, network, saas, schools, sparse

_ALL = (
    Program("hierarchical", hierarchical, Trace_ELBO, lr=0.02),
    Program("schools", schools, Trace_ELBO, lr=0.02),
    Program("sparse", sparse, partial(Trace_ELBO, num_particles=2), lr=0.02),
    Program("logistic", logistic, TraceMeanField_ELBO, lr=0.02),
    Program("mixture", mixture, partial(TraceEnum_ELBO, max_plate_nesting=1), lr=0.02),
    Program("marginal_mixture", marginal_mixture, Trace_ELBO, lr=0.02),
    Program("topics", topics, TraceMeanField_ELBO, lr=0.05),
    Program("vae", vae, Trace_ELBO, lr=0.003, overhead=False),
    Program("markov", markov, Trace_ELBO, lr=0.003, overhead=False),
    Program("cells", cells, TraceMeanField_ELBO, lr=0.003),
    Program("local", local, Trace_ELBO, lr=0.02),
    Program("counts", counts, Trace_ELBO, lr=0.02),
    Program("network", network, Trace_ELBO, lr=0.02),
    Program("saas", saas, Trace_ELBO, lr=0.02),
)
PROGRAMS = {program.name: program for program in _ALL}
