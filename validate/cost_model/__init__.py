"""The cost model: predict what a pass has to do, and how long a Neural Engine takes for it."""
