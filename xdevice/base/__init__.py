"""The ground of xdevice: the value `Device` and its spellings, dtypes, the version."""
