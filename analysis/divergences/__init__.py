"""The table of KL divergences, and the computation of the rational approximations of `pyrodrop.divergences`."""
