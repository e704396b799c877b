"""Lines, names, addresses and precedence of generated C."""
