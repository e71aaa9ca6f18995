"""Training a guide: from data and settings to a fit, or to replicates."""
