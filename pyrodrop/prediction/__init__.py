"""Prediction: sampled functions, the predictive mixture, its moments, and closed forms."""
