"""Shared helpers without dependencies: files, processes, memory, options, errors and text formatting."""
