"""The same weights under another policy."""

import torch

from tokendepth.depth.base import PolicyConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import ModelConfig


def with_policy(decoder: Decoder, config: PolicyConfig, *, keeping: bool = False) -> Decoder:
    """A decoder that shares the weights of another, with a policy of its own.

    What the other's policy reads out with, the new one does too.

    Args:
        decoder: is not changed.
        config: of the policy.
        keeping: give the policy the weights of the other's, which must be of its kind; else it has
            those that it starts with, the same each time.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = ModelConfig(decoder=decoder.config, schedule=decoder.schedule, policy=config).build()
    weights = {
        name: value
        for name, value in decoder.state_dict().items()
        if not name.startswith("policy.")
    }
    made.load_state_dict(weights, strict=False, assign=True)
    if decoder.config.tied_head:
        made.head.weight = made.embedding.weight
    if keeping:
        made.policy.load_state_dict(decoder.policy.state_dict(), assign=True)
    else:
        made.policy.read_out = decoder.policy.read_out
    return made.to(decoder.embedding.weight.device).train(decoder.training)
