"""The lowest room of xdevice: the class `Device` and the spellings of a device, dtypes, the
version."""
