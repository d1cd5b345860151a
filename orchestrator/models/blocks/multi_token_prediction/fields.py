"""The fields of multi-token prediction in `model`."""

from typing import Annotated

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, NotOfNetwork
from orchestrator.fields.values import NonNegative, Size


class MultiTokenPredictionSpec(Section):
    """How many further tokens are predicted, and how much their losses weigh."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    mtp_num_layers: Annotated[Size, resume.SHAPE, HashedIfChanged(), AlsoCalled("num_nextn_predict_layers")] = 0
    """Multi-token prediction: layers behind the last one, each of which predicts one token further ahead; none by
    default. Training uses them, and generation to draft tokens."""
    mtp_loss_scaling_factor: Annotated[NonNegative, resume.LOSS, NotOfNetwork(), HashedIfChanged()] = 0.1
    """Multi-token prediction: weight of the mean of these layers' losses beside the loss of the next token."""

    @property
    def predicts_further(self) -> bool:
        """Whether tokens after the next one are predicted too."""
        return self.mtp_num_layers > 0
