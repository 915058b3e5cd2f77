"""Overlapping work: prefetching, tasks that run side by side, and graphs. Also finds hidden transfers."""
