"""What everything stands on: the value `Device` and its spellings, dtypes, the version."""
