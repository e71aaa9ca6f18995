"""Bad calls of the public functions and classes, and what only looks bad.

judge            what a refusal is
test_signatures  every argument of every callable, from its annotation
test_*           by area, tables of calls with a fragment of each message
"""
