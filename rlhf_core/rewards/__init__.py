"""Rewards: typed signals, reward models, their read-outs, and composition into per-token rewards."""
