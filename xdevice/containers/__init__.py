"""How containers are walked and rebuilt, and what is seen in objects that nobody registered."""
