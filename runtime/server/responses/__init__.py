"""OpenAI's Responses API, without state: https://platform.openai.com/docs/api-reference/responses"""
