"""Which schedule a nest gets, by rules that know the processor."""
