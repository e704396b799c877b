"""Which schedules are tried, and where what was found is kept."""
