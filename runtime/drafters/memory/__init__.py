"""The memory of drafting across requests, separate for each owner, and its files."""
