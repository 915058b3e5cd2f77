"""Rewrites the layers of two models, before they are paired, if the models express the same computation in two
forms."""
