"""Saves tensors and models to files, and loads them: `save` and `load`."""
