"""Draft by context mixing: the predictions of many contexts are mixed with weights that are learnt online.

The contexts come from the current text and from earlier requests. docs/drafting.md describes the method.
"""

LEARNER = "mix"
LEARNER_VERSION = 1
"""To be increased whenever layout.py, contexts.py or nodes.py change the meaning of an image's bytes."""
