"""The self-test: what this machine does with packages, step by step, in processes that may die."""
