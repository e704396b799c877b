"""Running compiled code: contexts that own memory, routines bound to it."""
