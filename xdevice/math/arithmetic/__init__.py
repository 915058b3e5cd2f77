"""Arithmetic without a framework's name in it: the functions of the Python Array API standard, with the same rules on
every backend."""
