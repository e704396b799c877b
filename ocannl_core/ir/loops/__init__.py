"""The loop language, which backends compile; the interpreter defines its semantics."""
