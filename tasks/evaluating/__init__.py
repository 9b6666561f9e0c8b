"""Evaluation of policies and reward models."""
