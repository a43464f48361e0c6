"""Artifact -> tokens: blocks, regions, rows, the engine, sampling, drafters, backends, text."""
