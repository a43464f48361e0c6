"""What executes shards: the portable backend and its libraries."""
