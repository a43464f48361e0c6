"""The self-test: try packages on this machine step by step, in processes that may crash."""
