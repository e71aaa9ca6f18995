"""Other packages to compare with: their training steps, posteriors and programs, each written in the idiom of the package.

    networks, numpyro_training   networks that are timed, and their steps, for the benchmark of steps
    numpyro_programs             Pyro programs, for the benchmark of programs
    scripts, processes           functions drawn from a posterior, by scripts that import the other package but not this one

``requirements.txt`` lists the packages. None is imported before it is used.
"""
