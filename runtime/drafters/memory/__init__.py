"""The memory of drafting across requests, separate for each tenant, and its files."""
