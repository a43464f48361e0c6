"""Serve OpenAI's Responses API, without stored responses:
https://platform.openai.com/docs/api-reference/responses"""
