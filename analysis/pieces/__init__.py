"""Long work in pieces that go on where they were: what waits for a GPU, and the whole zoo."""
