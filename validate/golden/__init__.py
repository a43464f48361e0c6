"""The golden gate: an independent reference checks that an artifact computes what its GGUF means."""
