"""A benchmark on tables: tables that are selected by a rule, other packages with their defaults, and scores."""
