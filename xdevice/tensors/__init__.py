"""Making tensors, placing, moving, copying and comparing them, and converting between frameworks."""
