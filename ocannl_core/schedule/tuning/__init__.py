"""Search for faster schedules, and a cache of the results."""
