"""The reference's mixers, a module each; none shares a formula with the graph."""
