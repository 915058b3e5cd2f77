"""Calls to NVIDIA's driver, for all frameworks: finding GPUs, and copying between GPUs and the host."""
