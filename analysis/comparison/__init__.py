"""Comparing fits: held-out density, leave-one-out cross-validation, ELBOs and how far each can be trusted."""
