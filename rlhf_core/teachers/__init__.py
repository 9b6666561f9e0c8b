"""Teachers, which correct wrong solutions: an OpenAI-compatible endpoint, a local model, or the testbed's oracle."""
