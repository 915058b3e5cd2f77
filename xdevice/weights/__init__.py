"""Values that outlive a process or change frameworks: files, and the states of models."""
