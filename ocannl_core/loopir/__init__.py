"""The loop language: what backends compile, with a meaning that the interpreter defines."""
