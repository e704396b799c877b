"""How kernels become one: fills and neighbours, what can move, and what nobody reads then."""
