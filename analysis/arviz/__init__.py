"""Convert fits and Gaussian processes to ArviZ data trees."""
