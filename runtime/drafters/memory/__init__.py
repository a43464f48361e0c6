"""Keep what drafting learns from requests, for each tenant separately, in RAM and on disk."""
