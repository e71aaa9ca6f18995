"""Long work in pieces that continue where they were interrupted: what waits for a GPU, and the whole zoo."""
