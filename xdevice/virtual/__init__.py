"""Virtual GPUs: separate devices in host memory, for a machine without GPUs."""
