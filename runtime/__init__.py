"""Run a converted model: from text to tokens, through passes of its shards, and back to text."""
