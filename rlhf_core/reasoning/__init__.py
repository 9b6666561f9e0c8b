"""Step-by-step solutions: their steps, the answers they reach, and how mistakes in them are located and rewritten."""
