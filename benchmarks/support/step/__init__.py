"""What a step of one process of many does, counted without the others and without memory for its tensors."""
