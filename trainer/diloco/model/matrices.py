"""Finds a model's hidden matrices, which map features to features.

Muon trains these; embeddings, the output layer, norms, biases and kernels are not among them.
"""

from torch import nn

from diloco.model.fragments import embedding_parameters, trained_parameters
from diloco.model.probe import vocabulary_size_of


def hidden_matrices(module: nn.Module) -> tuple[str, ...]:
    """Names of the trained parameters of exactly two dimensions that are neither embedding nor output layer, in order.

    An embedding is what an ``nn.Embedding`` holds, as in ``layout_of``. The output layer is the last ``nn.Linear``, in
    the order of registration, that has as many outputs as the model has token ids (ours). A matrix that is one of the
    two in another form, such as a table of positions that is a bare parameter, counts as hidden.

    Raises:
        ModelError: the forward pass raises or its output is not (batch, sequence, vocabulary).
    """
    others = embedding_parameters(module) | _output_parameters(module, vocabulary_size_of(module))
    return tuple(
        name
        for name, parameter in trained_parameters(module).items()
        if parameter.dim() == 2 and id(parameter) not in others
    )


def _output_parameters(module: nn.Module, vocabulary_size: int) -> frozenset[int]:
    """Identities of the output layer's parameters; none if no layer is recognized as one."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear) and part.out_features == vocabulary_size]
    return frozenset(id(parameter) for layer in layers[-1:] for parameter in layer.parameters())
