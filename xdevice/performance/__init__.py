"""Work that overlaps, and hidden copies: prefetching, tasks side by side, graphs, and finding
hidden transfers."""
