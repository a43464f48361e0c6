"""The native worker's host: processes that hold shards and states and run whole passes (docs/worker.md)."""
