"""A table of bad calls: every argument of every public callable, with everything that it should not be.

harness    a call with its arguments, the rows made from it, and the judgement of what a row did
kinds      the bad values of each kind of argument: counts, numbers, flags, tensors, ...
test_*     the calls, by area; test_surface holds the table against the public names
"""
