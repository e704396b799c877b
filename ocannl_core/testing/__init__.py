"""What plugin authors test with: a conformance suite, random loop programs, exact comparison."""
