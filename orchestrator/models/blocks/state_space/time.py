"""What a state space layer moves in memory and between ranks beside its matrices and its scan: nothing."""

from orchestrator.models.blocks.mlp.time import exchanged as exchanged
from orchestrator.models.blocks.mlp.time import gathered as gathered
from orchestrator.models.blocks.mlp.time import more_launches as more_launches
from orchestrator.models.blocks.mlp.time import moved as moved
