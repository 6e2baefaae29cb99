"""Text to tokens, and trained models to evaluations and other formats."""
