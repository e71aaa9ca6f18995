"""Networks that really shrink: from a sparse posterior to a small plain module."""
