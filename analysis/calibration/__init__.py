"""Simulation-based calibration: whether a method of inference gives posteriors that are right on average over the prior."""
