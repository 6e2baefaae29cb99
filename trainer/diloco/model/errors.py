"""What can be wrong with a model, said in one line."""


class ModelError(ValueError):
    """The model cannot be built, trained or loaded as asked; the text names the field or file and what is allowed."""
