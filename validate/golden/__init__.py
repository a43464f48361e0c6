"""The golden gate: an artifact computes what its GGUF means, by an independent reference."""
