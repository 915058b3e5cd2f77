"""Rewrites the layers of two models, before they are paired, where the models have one thing in two forms."""
