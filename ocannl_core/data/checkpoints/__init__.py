"""Checkpoints: tensors and the state of training in files of the safetensors format."""
