"""What a network that users bring is, read from its modules and from running it.

modes         training and evaluation mode, and states that are left as they were
sites         its parameters by role: with a prior, without, fixed; one name for what is shared
parametrised  weights that are computed of other parameters
call          the network with other values of its parameters
many          the same for many weights at once
checks        what must hold before it is trained
units         which axis of a weight counts its input units
noise         random numbers that it draws itself
attributes    Python attributes that a forward changes
examples      which axes count examples, and whether examples see each other
first         the weights that see x itself
starts        new initial values
"""
