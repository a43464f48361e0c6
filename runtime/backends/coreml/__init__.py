"""The backend that has Core ML run the shards, through coremltools' own classes."""
