"""The formulas of token-selective attention, by plain tensor operations in float64."""

import math

import pytest
import torch

from tokendepth.depth.token_selective import TokenSelectiveConfig
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder

WIDTH, BLOCKS, HEADS, VOCAB, LENGTH = 12, 4, 3, 17, 9
CONFIG = DecoderConfig(
    vocab_size=VOCAB,
    width=WIDTH,
    num_blocks=BLOCKS,
    num_heads=HEADS,
    num_key_value_heads=HEADS,
    head_dim=WIDTH // HEADS,
    inner_width=4 * WIDTH,
    norm="layer",
    positions="learned",
    gated=False,
    activation="gelu",
    feed_forward_bias=True,
    max_positions=LENGTH,
)


def decoder(scale=0.4):
    torch.manual_seed(0)
    made = Decoder(CONFIG).double().eval().requires_grad_(False)
    made.policy = TokenSelectiveConfig().build(made).double().requires_grad_(False)
    for name, parameter in made.named_parameters():
        gain = "norm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, std=scale, mean=float(gain))
    return made.eval()


def layer_norm(x, weights, name):
    centred = x - x.mean(-1, keepdim=True)
    unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attention(x, weights, name):
    q, k, v = (
        (x @ weights[f"{name}.{part}.weight"].T).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH / HEADS)
    scores += torch.full((LENGTH, LENGTH), -math.inf, dtype=x.dtype).triu(1)
    shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
    mixed = (shares @ v).transpose(1, 2).reshape(x.shape)
    return mixed @ weights[f"{name}.output.weight"].T


def feed_forward(x, weights, name):
    inner = x @ weights[f"{name}.up.weight"].T + weights[f"{name}.up.bias"]
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    return inner @ weights[f"{name}.down.weight"].T + weights[f"{name}.down.bias"]


def by_hand(ids, weights, choose):
    """Logits, and p of each router; `choose` makes the factor on the updates from p."""
    h = weights["embedding.weight"][ids] + weights["position_embedding.weight"][: ids.shape[1]]
    gates = []
    for block in range(BLOCKS):
        name, a = f"blocks.{block}", torch.ones_like(h[..., :1])
        if block > 0:
            router = f"policy.routers.{block - 1}"
            inner = h @ weights[f"{router}.inner.weight"].T + weights[f"{router}.inner.bias"]
            logit = inner.clamp_min(0) @ weights[f"{router}.last.weight"].T
            gates.append(1 / (1 + (-(logit + weights[f"{router}.last.bias"])).exp()))
            a = choose(gates[-1])
        h = h + a * attention(
            layer_norm(h, weights, f"{name}.attention_norm"), weights, f"{name}.attention"
        )
        h = h + a * feed_forward(
            layer_norm(h, weights, f"{name}.feed_forward_norm"), weights, f"{name}.feed_forward"
        )
    logits = layer_norm(h, weights, "final_norm") @ weights["embedding.weight"].T
    return logits, torch.cat(gates, -1)


CHOICES = {
    "soft": lambda p: 1 - p,
    "hard": lambda p: (p <= 0.5).double(),
    "hard_soft": lambda p: (p <= 0.5) * (1 - p),
}


@pytest.mark.parametrize("executor", ["dense", "gathered", "feed_forward"])
@pytest.mark.parametrize("routing", CHOICES)
def test_the_forward_pass_is_the_formula(routing, executor):
    ours = decoder()
    ids = torch.randint(VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    expected, p = by_hand(ids, dict(ours.named_parameters()), CHOICES[routing])
    output = ours(ids, routing=routing, executor=executor)
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(output.penalty["depth"], (1 - p).mean(-1), rtol=0, atol=1e-12)
    assert 0.1 < float((p > 0.5).double().mean()) < 0.9
    if routing != "soft":
        assert torch.equal(output.executed[..., 1:], p <= 0.5)
