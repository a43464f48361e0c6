"""Run published experiments: each suite is a TOML file here, and so may be a file of one's own."""
