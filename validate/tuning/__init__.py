"""Finds the choices of a conversion that run a model fastest on one machine, by measuring its shards."""
