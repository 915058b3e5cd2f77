"""When work runs and how long it takes: streams, waiting, timing, graphs, tasks side by side, and hidden transfers."""
