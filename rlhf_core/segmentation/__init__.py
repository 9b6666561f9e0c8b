"""Segmentation: bandit, token, n-gram, sentence markers, entropy cutoff, SaT sentences."""
