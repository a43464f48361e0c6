"""The devices of the self-test: Core ML, the worker, or the portable backend."""
