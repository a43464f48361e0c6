"""The backend whose shards run in native worker processes, which hold the states (docs/worker.md)."""
