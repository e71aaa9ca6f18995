"""Prediction: draws of functions, their mixture, its moments, and closed forms."""
