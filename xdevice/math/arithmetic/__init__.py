"""Framework-independent arithmetic: the functions of the Python Array API standard, with the same rules on every
backend."""
