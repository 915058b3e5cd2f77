"""Saves tensors and models in files, and loads them again."""
