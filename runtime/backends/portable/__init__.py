"""Run .mlpackage shards on any system: one loader, and a table of operations for each library."""
