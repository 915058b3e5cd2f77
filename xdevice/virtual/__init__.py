"""Virtual GPUs: devices of their own on a machine without any."""
