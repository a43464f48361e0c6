"""Serve Anthropic's Messages API, which Claude Code speaks: https://docs.anthropic.com/en/api/messages"""
