"""Draft sources of others, which auto is compared with."""
