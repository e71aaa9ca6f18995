"""Reports of experiments: tables at the console, runs on disk, and HTML pages."""
