"""Other packages: their training steps, their posteriors, and their programs, each in its own idiom.

    training, numpyro_training   steps on the networks of `networks`, for the benchmarks of steps and memory
    numpyro_programs             Pyro programs, for the benchmark of programs
    scripts, processes           functions drawn from a posterior by a script that needs its package and not this one

``requirements.txt`` lists the packages. None is imported before it is used.
"""
