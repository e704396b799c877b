"""Placements chosen by measurement: the search, its report, and its part of the tuning cache."""
