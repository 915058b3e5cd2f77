"""Functions that overlap work (prefetching, tasks that run side by side, graphs), and that find hidden transfers."""
