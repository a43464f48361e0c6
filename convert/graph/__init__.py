"""Build the graph of a shard in MIL; one module for each primitive."""
