"""Several processes, on one machine or many: who they are, what they tell each other, and the collectives they call."""
