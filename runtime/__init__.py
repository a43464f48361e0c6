"""Artifact -> tokens: passes, regions, planner, speculation, sampling, engine, service, backends, text."""
