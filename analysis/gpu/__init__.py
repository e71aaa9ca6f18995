"""Everything of this project that waits for a GPU, in pieces: ``python -m pyrodrop.analysis.gpu``, or ``make gpu``.

pieces     the list: commands, the safest first
attempt    one attempt at a command, in a process that is ended after a time limit
record     what is known of a piece: OUT/NAME.json, with its results, or how far it is
driver     goes through the pieces: skips what is done, goes on with what was broken off
"""
