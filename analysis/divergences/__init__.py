"""The table of divergences, and where the rational approximations in it come from."""
