"""Work that overlaps and copies that hide: prefetching, tasks side by side, graphs, and finding hidden transfers."""
