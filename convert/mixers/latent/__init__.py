"""Multi-head latent attention (MLA)."""
