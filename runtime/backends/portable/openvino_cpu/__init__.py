"""The fast portable library: OpenVINO on the CPU."""
