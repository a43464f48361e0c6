"""Read tool calls from streamed answers, and constrain them to the tools' schemas."""
