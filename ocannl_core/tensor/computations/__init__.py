"""Recorded code with open shapes, and its resolution into assignments."""
