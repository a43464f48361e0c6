"""The gates an artifact must pass before the runtime trusts it."""
