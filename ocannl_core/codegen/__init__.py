"""Code generation for the C family: kernels to C text."""
