"""The error for a model that cannot be used."""


class ModelError(ValueError):
    """The model cannot be built, trained or loaded as asked; the text names the field or file and what is allowed."""
