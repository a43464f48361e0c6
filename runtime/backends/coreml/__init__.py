"""The backend that runs shards with Core ML, through the classes of coremltools."""
