"""Whether two programs compute the same numbers: recording, comparing, and reports."""
