"""Inspect and call a user's network: properties are read from its modules or found by running it.

modes         training and evaluation mode; restoring buffers and attributes after a call
sites         parameters by role (trained weights, trained vectors, fixed) and the names of tied ones
parametrised  weights that are computed from other parameters
call          call a network with given parameter values
many          call a network for many sets of weights at once
mixing        whether a model's outputs at one row depend on other rows
checks        checks before training and prediction
units         which axis of a weight indexes its input units
noise         random numbers that the network draws itself
examine       what a network does with a few rows of x, found by calling it
first         weights of the first layers, which are applied to x itself
starts        new initial values
"""
