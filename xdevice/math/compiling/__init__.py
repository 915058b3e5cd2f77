"""`compile`: functions of tensors as programs of the framework, which run without Python."""
