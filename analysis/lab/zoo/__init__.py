"""Measurements of the zoo's entries: references, shifted digits, and models of other packages on the same rows."""
