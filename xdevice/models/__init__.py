"""A model of one framework in another: its state, what differs beside it, its optimizer's state."""
