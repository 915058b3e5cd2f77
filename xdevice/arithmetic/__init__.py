"""Arithmetic without a framework's name in it: the Python Array API standard on every backend, by the same rules."""
