"""Weights of transformers' models as our decoder's, and back.

A family is a table (`families`); nothing branches on a class. Rotary frequencies are copied from
the model, so that every static scaling of them comes along.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.families import FAMILIES, Family
from tokendepth.models.layouts import Part, plain
from tokendepth.nn.rotary import frequencies

_KINDS = ("weight", "bias")
_HALF = 2.0**-8
"""Frequencies nearer than this differ by no more than a rounding to bfloat16."""


def from_transformers(model: nn.Module, *, key_value_rule: str = "all") -> Decoder:
    """Our decoder with a copy of the weights of a causal language model of transformers.

    Args:
        model: of a known family; it is not changed. Its dropout is left behind.
        key_value_rule: keys and values of skipped rows: all, kept or carried.

    Raises:
        ValueError: an unknown family, or a feature of a known one that the decoder lacks.
    """
    theirs: Any = model
    config: Any = getattr(model, "config", None)
    name = getattr(config, "model_type", type(model).__name__)
    family = _known(name, "model")
    embedding, head = theirs.get_input_embeddings(), theirs.get_output_embeddings()
    ours = replace(
        read_facts(family, config),
        tied_head=head.weight is embedding.weight,
        rotary_scaling=_rotary_scaling(family, model),
        key_value_rule=key_value_rule,  # pyright: ignore[reportArgumentType]
        family=name,
    )
    with torch.random.fork_rng(devices=[]):
        decoder = Decoder(ours)
    decoder = decoder.to(device=embedding.weight.device, dtype=embedding.weight.dtype)
    weights = _read_weights(family, model, ours)
    decoder.load_state_dict({**weights, **_turning(family, model, decoder)})
    return decoder.train(model.training)


def to_transformers(decoder: Decoder, family: str | None = None, **settings: Any) -> Any:
    """A causal language model of transformers with a copy of the decoder's weights.

    Policies have no place there: the model runs every block for every token, as `Dense` does.

    Args:
        decoder: whose schedule runs each block once, in order.
        family: what transformers calls it; by default the one that the weights came from, else the
            first of the known ones that can say what the decoder does.
        settings: of that family's config that change nothing computed, such as `eos_token_id`.

    Raises:
        ValueError: an unknown family, or facts of the decoder that it cannot say.
    """
    from transformers import AutoModelForCausalLM

    visits = [block for _, block in decoder.schedule.visits]
    normed = any(span.normed for span in decoder.schedule.spans)
    if normed or visits != list(range(decoder.config.num_blocks)):
        raise ValueError(
            "schedule: models of transformers run each block once, in order, on the state as it "
            "is; this schedule does not, so a copy would compute something else"
        )
    name, config = _config_of(decoder.config, family, settings)
    weight = decoder.embedding.weight
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=weight.dtype)
    _check_turning(decoder)
    state = dict(_written_weights(FAMILIES[name], model, decoder))
    model = model.to(weight.device)
    model.load_state_dict(state)
    return model.train(decoder.training)


def read_facts(family: Family, config: Any) -> DecoderConfig:
    """Our config from theirs, of the family.

    Raises:
        ValueError: a feature that the decoder lacks, by the name of their setting.
    """
    for setting, wanted in (
        *((one, True) for one in family.on),
        *((one, False) for one in family.off),
    ):
        if bool(getattr(config, setting, wanted)) != wanted:
            raise ValueError(
                f"model: {setting}={getattr(config, setting)} is not known to the decoder; it must "
                f"be switched {'on' if wanted else 'off'}"
            )
    facts = {ours: getattr(config, theirs) for ours, theirs in family.same.items()}
    for translation in family.translated:
        facts.update(translation.read(config))
    return DecoderConfig(**facts, **family.always, tied_head=config.tie_word_embeddings)


def _known(name: str, field: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(
            f"{field}: the family {name!r} has no decoder here; known families are "
            f"{', '.join(FAMILIES)}. Measures (tokendepth.map, capture, Lens) work on any causal "
            "language model of transformers."
        )
    return FAMILIES[name]


def _config_of(
    ours: DecoderConfig, wanted: str | None, settings: dict[str, Any]
) -> tuple[str, Any]:
    """The family and a config of it that says the same as ours."""
    from huggingface_hub.errors import StrictDataclassError

    named = wanted or ours.family
    misfits = []
    for name in (named,) if named else FAMILIES:
        family = _known(name, "family")
        try:
            config = _write_facts(name, family, ours, settings)
            differing = _differences(ours, read_facts(family, config))
        except (StrictDataclassError, ValueError) as error:
            misfits.append(f"{name} refuses them: {error.__cause__ or error}")
            continue
        if not differing:
            return name, config
        misfits.append(f"{name} cannot say {', '.join(differing)}")
    raise ValueError(f"family: the facts of this decoder do not fit; {'; '.join(misfits)}")


def _write_facts(name: str, family: Family, ours: DecoderConfig, settings: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    given = {
        theirs: getattr(ours, mine)
        for mine, theirs in family.same.items()
        if not (mine == "max_positions" and ours.max_positions is None)
    }
    for translation in family.translated:
        given.update(translation.write(ours))
    given.update(dict.fromkeys(family.dropouts, ours.dropout))
    given.update(tie_word_embeddings=ours.tied_head, use_cache=True)
    return AutoConfig.for_model(name, **{**given, **settings})


def _differences(ours: DecoderConfig, found: DecoderConfig) -> list[str]:
    """Facts of ours that a family's config gives back otherwise."""
    passing = {"family", "key_value_rule", "dropout", "max_positions"}
    if ours.max_positions is not None:
        passing.remove("max_positions")
    if ours.norm == "rms":
        passing.add("norm_bias")
    mine, theirs = (
        replace(one, rotary_width=None if one.turned_width == one.head_dim else one.turned_width)
        for one in (ours, found)
    )
    return [
        f"{field.name}={getattr(mine, field.name)!r}"
        for field in dataclasses.fields(DecoderConfig)
        if field.name not in passing and getattr(mine, field.name) != getattr(theirs, field.name)
    ]


def _modules(family: Family, model: Any, config: DecoderConfig) -> Iterator[tuple[str, str, Part]]:
    """Their module, the prefix of ours, and how the one becomes the other."""
    names = {id(module): name for name, module in model.named_modules()}
    yield names[id(model.get_input_embeddings())], "", plain("embedding")
    yield names[id(model.get_output_embeddings())], "", plain("head")
    for name, part in family.top.items():
        yield name, "", part
    for block in range(config.num_blocks):
        for name, part in family.parts.items():
            yield f"{family.blocks}.{block}.{name}", f"blocks.{block}.", part


def _read_weights(family: Family, model: nn.Module, config: DecoderConfig) -> dict[str, Tensor]:
    theirs, weights = dict(model.state_dict()), {}
    for name, prefix, part in _modules(family, model, config):
        for kind in _KINDS:
            source = theirs.pop(f"{name}.{kind}", None)
            if source is not None:
                for mine, value in zip(part.ours, part.split(source, config), strict=True):
                    weights[f"{prefix}{mine}.{kind}"] = value
    if theirs:
        raise ValueError(
            f"model: weights that its family does not have, such as {', '.join([*theirs][:3])}; "
            "merge or remove what was added to it"
        )
    return weights


def _written_weights(family: Family, model: Any, decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    ours = decoder.state_dict()
    for name, prefix, part in _modules(family, model, decoder.config):
        for kind in _KINDS:
            names = [f"{prefix}{mine}.{kind}" for mine in part.ours]
            if all(mine in ours for mine in names):
                yield f"{name}.{kind}", part.join([ours[mine] for mine in names], decoder.config)


_TURNING = {
    "rotary.frequencies": ("inv_freq", "full_attention_inv_freq"),
    "window_rotary.frequencies": ("sliding_attention_inv_freq",),
}


def _turning(family: Family, model: nn.Module, decoder: Decoder) -> dict[str, Tensor]:
    """Our own frequencies, or theirs where they follow from no fact of ours, as under yarn.

    Theirs may have been rounded together with the weights; ours are never narrower than float32.
    """
    turning = {name: value for name, value in decoder.state_dict().items() if name in _TURNING}
    if family.rotary is not None:
        buffers = dict(model.get_submodule(family.rotary).named_buffers())
        for ours, names in _TURNING.items():
            for found in (buffers[name].to(turning[ours]) for name in names if name in buffers):
                if not torch.allclose(found, turning[ours], rtol=_HALF, atol=0):
                    turning[ours] = found
    return turning


def _rotary_scaling(family: Family, model: nn.Module) -> float:
    if family.rotary is None:
        return 1.0
    module = model.get_submodule(family.rotary)
    plain_one = getattr(module, "attention_scaling", 1.0)
    return float(getattr(module, "full_attention_attention_scaling", plain_one))


def _check_turning(decoder: Decoder) -> None:
    """Frequencies are no weights of theirs: they must follow from the config."""
    config = decoder.config
    if decoder.rotary is None:
        return
    expected = frequencies(config.turned_width, config.rotary_base, config.rotary_stretch)
    found = decoder.rotary.get_buffer("frequencies").float().cpu()
    if not torch.allclose(found, expected, rtol=_HALF, atol=0):
        raise ValueError(
            "rotary_stretch: the decoder's frequencies do not follow from its config (a scaling "
            "such as yarn came with the weights), so a config of transformers cannot say them"
        )
