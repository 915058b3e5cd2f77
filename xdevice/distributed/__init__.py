"""Several processes, on one machine or many: their ranks, the control connection between them, and the collectives."""
