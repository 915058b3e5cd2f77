"""Creates, moves, copies and compares tensors, finds their devices, and converts tensors between frameworks."""
