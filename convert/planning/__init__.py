"""Plan a conversion before any weight is read: its shapes, its shards and their limits."""
