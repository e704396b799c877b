"""The ground of all rooms: errors, positions in the user's program, settings, private files."""
