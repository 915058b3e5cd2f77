"""Values that outlive a process: files."""
