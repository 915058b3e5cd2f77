"""Which backends exist, which one is selected, and the `with` blocks that select a backend or a device."""
