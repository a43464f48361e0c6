"""Run programs with OpenVINO on the CPU, the fast portable library."""
