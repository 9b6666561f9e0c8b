"""Reading reward models: entropies, segments, reference rewards, and rewards of any prompt and response."""
