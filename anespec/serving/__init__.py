"""The part of `anespec serve` that is not in `runtime.server`: the models, and how they are loaded."""
