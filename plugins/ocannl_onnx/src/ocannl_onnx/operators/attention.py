"""Attention, beside the bodies that the standard gives for its operators."""
