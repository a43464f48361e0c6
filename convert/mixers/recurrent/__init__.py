"""What Mamba 2 and gated delta nets share."""
