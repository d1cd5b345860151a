"""The dense MLP, with or without a gate; experts are MLPs too."""
