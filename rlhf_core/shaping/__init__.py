"""Reward shaping: pure functions, running statistics, and the shapings that a recipe names. Source: PAR."""
