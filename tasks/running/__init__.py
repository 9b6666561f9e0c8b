"""Runs a stage: its outputs, checkpoints, processes, models and progress."""
