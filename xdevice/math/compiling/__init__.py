"""`compile`: turns functions of tensors into programs of the framework, which run without Python."""
