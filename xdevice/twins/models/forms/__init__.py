"""Rewrites the layers of two models, before they are paired, where the models express the same computation in two
forms."""
