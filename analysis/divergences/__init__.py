"""The table of KL divergences, and how the rational approximations in it were computed."""
