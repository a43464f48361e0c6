"""Build recurrent mixers: Mamba 2 and gated delta nets, over the rows of a chunk and a carried state."""
