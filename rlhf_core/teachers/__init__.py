"""Teachers, which correct wrong solutions: an OpenAI-compatible endpoint, or the testbed's oracle."""
