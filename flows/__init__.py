"""Prefect flows: they pass paths, digests and names, never tensors."""
