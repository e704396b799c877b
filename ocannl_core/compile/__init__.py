"""From assignments to an executable, and the search for schedules."""
