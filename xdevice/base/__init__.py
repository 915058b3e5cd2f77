"""What the rest of xdevice is built on: the value `Device` and its spellings, dtypes, the version."""
