"""Flash attention: two products, with an online softmax between them, in one kernel."""
