"""What `anespec serve` adds to the daemon of `runtime.server`: which models there are, and how they come."""
