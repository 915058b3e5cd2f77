"""Controls when work runs, and measures how long it takes: streams, events, waiting, blocking mode and timing."""
