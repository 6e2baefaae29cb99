"""The CustomResourceDefinition, from the models."""
