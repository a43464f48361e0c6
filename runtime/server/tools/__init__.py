"""Tool calls: how models write them, read out of an answer as it comes, and held to what a tool takes."""
