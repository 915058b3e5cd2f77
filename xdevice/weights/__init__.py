"""Tensors and models in files: `save` and `load`."""
