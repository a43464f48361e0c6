"""The models and inputs of the self-test."""
