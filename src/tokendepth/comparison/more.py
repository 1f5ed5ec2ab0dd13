"""More entrants from those there are: other values of a policy's config, and controls."""

from collections.abc import Sequence
from dataclasses import replace

from tokendepth.comparison.compare import CompareOptions, Entrant
from tokendepth.depth.base import PolicyConfig, check_routing
from tokendepth.depth.dense import Dense
from tokendepth.depth.registry import POLICIES
from tokendepth.evaluation.controls import control_configs
from tokendepth.evaluation.evaluate import reading_of
from tokendepth.evaluation.passages import passages
from tokendepth.models.policies import with_policy
from tokendepth.training.recipe import parse_changes

CHOSEN_ON = 16_384
"""Tokens, at most, on which rates are measured and subsets chosen."""


def with_more(entrants: Sequence[Entrant], options: CompareOptions) -> list[Entrant]:
    """The entrants, each that has learned followed by its variants and controls.

    Raises:
        ValueError: a variant that no policy has the field for.
    """
    wanted = {given: _change(given) for given in options.variants}
    made, used = [], set[str]()
    for one in entrants:
        made.append(one)
        policy = one.loaded.decoder.policy
        if policy.config is None or policy.control or isinstance(policy, Dense):
            continue
        held = POLICIES.write(policy.config)
        for given, change in wanted.items():
            if set(change) <= set(held):
                used.add(given)
                made.append(_under(one, given, POLICIES.read(held | change), keeping=True))
        if options.controls:
            made += _controls(one, options)
    for given in sorted(set(wanted) - used):
        raise ValueError(f"variants: no policy here has the field of {given!r}")
    return made


def _change(given: str) -> dict[str, object]:
    return parse_changes([given])


def _controls(one: Entrant, options: CompareOptions) -> list[Entrant]:
    reading = reading_of(one.loaded, options.score)
    assert reading.length is not None
    cut = [replace(text, ids=text.ids[:CHOSEN_ON]) for text in one.documents]
    given = list(passages(cut, reading.length, skip=reading.skip or 0))
    policy = one.loaded.decoder.policy
    routing = check_routing(policy, "hard" if "hard" in policy.routings else None)
    configs = control_configs(one.loaded.decoder, given, routing, batch=reading.batch)
    return [_under(one, name, config) for name, config in configs.items()]


def _under(one: Entrant, what: str, config: PolicyConfig, *, keeping: bool = False) -> Entrant:
    """The same model and text under another policy; its scores are not kept."""
    decoder = with_policy(one.loaded.decoder, config, keeping=keeping)
    loaded = replace(one.loaded, model=decoder.eval(), title=f"{one.loaded.title} ({what})")
    group = f"{one.group} ({what})" if one.group else ""
    return replace(one, name=f"{one.name} ({what})", loaded=loaded, folder=None, group=group)
