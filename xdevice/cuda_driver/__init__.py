"""Calls to NVIDIA's driver, for all frameworks: which GPUs there are, and copies between them
and the host."""
