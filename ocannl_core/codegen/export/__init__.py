"""Routines as one C file with a header, for programs without Python."""
