"""What a row says of a trained model: every routing, every other value of its policy, controls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from study_arms import Arm
from tokendepth.adapters.load import load
from tokendepth.depth.base import PolicyConfig
from tokendepth.depth.registry import POLICIES
from tokendepth.evaluation.controls import control_configs
from tokendepth.evaluation.loss import score
from tokendepth.evaluation.passages import Passage, passages
from tokendepth.models.decoder import Decoder
from tokendepth.models.policies import with_policy
from tokendepth.text.documents import Document
from tokendepth.text.tokenizers import encode_text
from tokendepth.training.run import open_run

BATCH = 64
CHOSEN_ON = 16_384
"""Tokens on which rates are measured and subsets chosen, as `compare` does."""


def figures(arm: Arm, folder: Path, limit: int | None) -> dict[str, Any]:
    """Scores of the whole validation part, read in the recipe's windows.

    Args:
        arm: what was trained.
        folder: of the run.
        limit: score so many tokens of the part alone; None for all of it.
    """
    run, decoder = open_run(folder), load(folder).decoder
    ids = encode_text(run.tokenizer, run.corpus().validation)[
        : None if limit is None else limit + 1
    ]
    text = Document(name="validation", ids=tuple(ids.tolist()), is_special=(False,) * len(ids))
    given = list(passages([text], arm.recipe.window, skip=arm.recipe.skip))
    routings = decoder.policy.routings
    scores = {routing: scored(decoder, given, routing) for routing in routings}
    return {
        "tokens": sum(sum(one.scored) for one in given),
        "parameters": sum(one.numel() for one in decoder.parameters()),
        "routings": scores,
        "sweep": [{**change, **scored(_changed(decoder, change), given)} for change in arm.sweep],
        "controls": _controls(decoder, text, arm, given) if arm.controls else {},
    }


def scored(
    decoder: Decoder, given: Sequence[Passage], routing: str | None = None
) -> dict[str, Any]:
    """Loss, accuracy, executed share and FLOPs, and how open gates were where there are any."""
    told = score(decoder, given, routing=routing, batch=BATCH)
    gates = told.gates.gates()
    row: dict[str, Any] = {
        "loss": float(told.nats.mean()),
        "accuracy": float(told.correct.mean()),
        "executed_share": told.cost.executed_share,
        "flops_per_token": told.cost.total_flops / told.cost.tokens,
        "dense_flops_per_token": told.dense_cost.total_flops / told.cost.tokens,
    }
    if gates is not None:
        row |= {
            "alpha": gates.alpha,
            "share_above_half": gates.share_above_half,
            "histogram": list(gates.histogram),
        }
    return row


def _changed(decoder: Decoder, change: Mapping[str, Any]) -> Decoder:
    config: PolicyConfig | None = decoder.policy.config
    assert config is not None
    given = POLICIES.read(POLICIES.write(config) | dict(change))
    return with_policy(decoder, given, keeping=True).eval()


def _controls(
    decoder: Decoder, text: Document, arm: Arm, given: Sequence[Passage]
) -> dict[str, dict[str, Any]]:
    cut = replace(text, ids=text.ids[:CHOSEN_ON], is_special=text.is_special[:CHOSEN_ON])
    chosen = list(passages([cut], arm.recipe.window, skip=arm.recipe.skip))
    configs = control_configs(decoder, chosen, "hard", batch=BATCH)
    return {
        name: scored(with_policy(decoder, config).eval(), given) for name, config in configs.items()
    }
