"""Serve OpenAI's API: https://platform.openai.com/docs/api-reference"""
