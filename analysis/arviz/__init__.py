"""Fits and Gaussian processes as ArviZ data trees."""
