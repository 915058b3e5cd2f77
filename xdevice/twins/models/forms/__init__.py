"""Rewrites the layers of two models before pairing if the models express the same computation in different forms."""
