"""Reports of experiments: tables at the console, and runs on disk."""
