"""Fusion over shared rows: flash attention, online softmax, softmax, layer norm."""
