"""Training a guide: from data and settings to a fit, alone or as replicates."""
