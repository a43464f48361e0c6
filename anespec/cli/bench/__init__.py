"""Implement `anespec bench`: replays of traces without a model, and measurements on an artifact."""
