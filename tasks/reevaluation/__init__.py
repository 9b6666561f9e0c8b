"""Scheduled re-evaluation of trained policies on benchmarks."""
