"""Translation of operations and specifications to constraints."""
