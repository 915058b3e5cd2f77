"""Converts a model's parameters and its optimizer's state to another framework, and lists settings that differ."""
