"""When work runs and how long it takes: streams, events, waiting, blocking mode and timing."""
