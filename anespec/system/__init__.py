"""The machine below everything: files, processes, memory, options, errors and texts."""
