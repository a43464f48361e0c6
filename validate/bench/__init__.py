"""Measure the gain from drafting: on recorded traces without a model, and on an artifact."""
