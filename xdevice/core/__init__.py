"""Which backends there are, which one answers, and the blocks that change that."""
