"""Prediction: draws of functions, and the predictive mixture."""
