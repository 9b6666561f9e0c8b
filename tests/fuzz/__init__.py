"""Random and mutated inputs at every door: never a traceback, never a changed score."""
