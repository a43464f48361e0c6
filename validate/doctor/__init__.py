"""The doctor: what of this machine and of an artifact would go wrong, and the mend."""
