"""Models by name: local files, downloads, the cache of converted models, and loading."""
