"""Number formats, the scalar primitives, and their exact meaning."""
