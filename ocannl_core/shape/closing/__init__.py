"""Closing: decisions on sizes and rows that the constraints leave open."""
