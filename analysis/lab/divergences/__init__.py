"""The table of KL divergences."""
