"""Program-to-program optimisations of the loop language."""
