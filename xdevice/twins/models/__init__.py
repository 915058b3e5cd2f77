"""Converts the parameters of a model and the state of its optimizer to another framework, and lists the settings that
differ."""
