"""Observation of runs: logs of values, guards, comparisons of backends, timelines."""
