"""Routines as files of their own: gathered, written, compiled to WebAssembly, and called again."""
