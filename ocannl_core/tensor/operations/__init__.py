"""The operations that users call."""
