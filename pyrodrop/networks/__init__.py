"""Inspect and call a user's network: properties are read from its modules or found by running it.

sites          parameters by role (trained weights, trained vectors, fixed), all names of tied parameters, new initial values
assignment     priors and input units of every parameter, and which weights are applied to x itself
call           call a network with given parameter values, or with many sets of them
trial          properties of a network, found by calling it on a few rows of x
checks         checks of types, shapes and numbers before training and prediction
dropout_calls  calls that drop units, with masks from outside
dropouts       the dropouts of a network that was read (`pyrodrop.read`)
"""
