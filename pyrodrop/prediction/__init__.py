"""Prediction: draws of functions, the predictive mixture and its moments."""
