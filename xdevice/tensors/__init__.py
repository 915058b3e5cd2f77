"""Makes tensors, finds their devices, moves, copies and compares them, and converts them
between frameworks."""
