"""Backends as plugins: the hooks they implement, their discovery, and copies through the host."""
