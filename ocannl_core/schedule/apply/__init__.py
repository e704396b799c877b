"""Application of a schedule to a kernel nest."""
