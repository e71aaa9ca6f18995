"""What experiments print and draw: tables at the console, runs on disk, and a page of figures."""
