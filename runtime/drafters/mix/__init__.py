"""Many contexts, local and remembered, mixed by weights that learn online."""
