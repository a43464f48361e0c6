"""From a request for text to its answer, for every API."""
