"""The cost model: what a pass has to do, and how long a Neural Engine takes for it, as a prediction."""
