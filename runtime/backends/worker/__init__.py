"""The native worker's host: processes that keep shards and states resident and run whole passes (docs/worker.md)."""
