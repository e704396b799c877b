"""Projections: from closed shapes to loops and index maps."""
