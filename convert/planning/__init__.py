"""Plan a conversion before any weight is read: shapes, shards and their limits."""
