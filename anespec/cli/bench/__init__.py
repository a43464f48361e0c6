"""`anespec bench`: replays without a model, and runs on an artifact."""
