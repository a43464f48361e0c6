"""`anespec memory`: what drafting remembers of requests."""
