"""Walks and rebuilds containers, and finds the tensors in objects whose types are not registered."""
