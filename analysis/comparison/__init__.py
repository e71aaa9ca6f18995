"""Compare fits: held-out density, leave-one-out cross-validation, ELBOs, and how reliable each of them is."""
