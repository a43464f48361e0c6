"""Generate the answer to a request for text, for all APIs."""
