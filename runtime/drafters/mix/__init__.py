"""Many contexts, local and remembered, mixed by weights that learn online."""

LEARNER = "mix"
LEARNER_VERSION = 1
"""One more whenever layout.py, contexts.py or nodes.py give an image's bytes another meaning."""
