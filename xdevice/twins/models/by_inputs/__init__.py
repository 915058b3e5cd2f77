"""Runs two models on the same batch (`inputs=`) to find which layers correspond, and to compare the outputs."""
