"""The parts of a decoder, as its config says."""

from torch import nn

from tokendepth.models.config import DecoderConfig
from tokendepth.nn.attention import Attention
from tokendepth.nn.block import Block, Norms
from tokendepth.nn.feed_forward import FeedForward
from tokendepth.nn.norm import rms_norm
from tokendepth.nn.rotary import Rotary, frequencies


def norm(config: DecoderConfig, *, gains: bool = True) -> nn.Module:
    """Over the residual."""
    if not gains and config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_epsilon, elementwise_affine=False)
    if not gains:
        return nn.LayerNorm(config.width, eps=config.norm_epsilon, elementwise_affine=False)
    if config.norm == "rms":
        return rms_norm(config.width, config.norm_epsilon, from_one=config.gains_from_one)
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.norm_bias)


def rotaries(config: DecoderConfig) -> tuple[Rotary | None, Rotary | None]:
    """Of blocks without and with a window; the second where their bases differ."""
    if config.positions == "learned":
        return None, None
    width, other = config.turned_width, config.window_rotary_base
    turning = frequencies(width, config.rotary_base, config.rotary_stretch)
    return (
        Rotary(turning, config.rotary_scaling),
        None if other is None else Rotary(frequencies(width, other)),
    )


def block(config: DecoderConfig, index: int) -> Block:
    """One of the decoder's blocks; its window and its sandwich norms depend on which."""
    bare = index in config.bare_post_norms
    post = bare or config.post_norms
    norms = Norms(
        attention=norm(config),
        feed_forward=None if config.shared_norm else norm(config),
        attention_post=norm(config, gains=not bare) if post else None,
        feed_forward_post=norm(config, gains=not bare) if post else None,
    )
    return Block(
        norms,
        Attention(config.attention(index)),
        FeedForward(config.feed_forward),
        parallel=config.parallel,
    )
