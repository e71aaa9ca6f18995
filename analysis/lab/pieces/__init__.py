"""Long work in pieces that continue after an interruption: all work that needs a GPU."""
