"""Walks containers and rebuilds them, and finds the tensors in objects whose types are not
registered."""
