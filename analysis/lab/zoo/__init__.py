"""References of the zoo's entries."""
