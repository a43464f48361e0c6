"""Run requests: schedule them, plan and run passes, and commit tokens."""
