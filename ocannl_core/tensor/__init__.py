"""What users write: tensors, operations with gradients, blocks, recorded code."""
