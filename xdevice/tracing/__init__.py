"""What the layers of a model compute: each call, in order, with what went in and came out."""
