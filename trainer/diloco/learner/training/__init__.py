"""The inner steps: model, optimizer, evaluation, and what is read and written between steps."""
