"""Manage K/V slots: the regions of sequences, their content, and prefixes that later prompts reuse."""
