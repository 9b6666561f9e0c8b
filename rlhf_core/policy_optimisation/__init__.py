"""Policy optimisation: advantages, objectives, KL, and PPO over per-token rewards."""
