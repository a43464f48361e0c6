"""Tuning: find the options with which a model runs fastest on one machine, by measuring its shards."""
