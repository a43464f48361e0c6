"""The engine: requests are scheduled, passes planned and run, tokens committed."""
