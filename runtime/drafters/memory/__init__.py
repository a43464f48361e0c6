"""What drafting remembers across requests, apart by owner, and where it is kept."""
