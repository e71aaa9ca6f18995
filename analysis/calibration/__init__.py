"""Simulation-based calibration: whether a way of inference gives posteriors that are right on average over the prior."""
