"""Finds a model's hidden matrices, which map features to features.

Muon trains these; embeddings, the output layer, norms, biases and kernels are not among them.
"""

from torch import nn
from torch.nn.modules.conv import _ConvNd

from diloco.model.fragments import embedding_parameters, output_weight, trained_parameters


def hidden_matrices(module: nn.Module) -> tuple[str, ...]:
    """Names of the trained parameters that map features to features, in order.

    These are the parameters of two dimensions that are called weights (``weight``, ``in_proj_weight``), and stacks of
    matrices (experts, heads), of whatever name: three dimensions, each of at least 2. A bare table, such as one of
    positions or Mamba's ``A_log``, has two dimensions and another name. Kernels of convolutions, embeddings and the
    output layer (``output_weight``) are left out. An embedding is what an ``nn.Embedding`` holds, as in ``layout_of``.
    """
    others, output = embedding_parameters(module), output_weight(module)
    kernels = frozenset(id(one) for part in module.modules() if isinstance(part, _ConvNd) for one in part.parameters())
    return tuple(
        name
        for name, parameter in trained_parameters(module).items()
        if name != output
        and id(parameter) not in others | kernels
        and _maps_features(name.rpartition(".")[2], parameter)
    )


def _maps_features(own_name: str, parameter: nn.Parameter) -> bool:
    if parameter.dim() == 3:
        return min(parameter.shape) > 1
    return parameter.dim() == 2 and "weight" in own_name
