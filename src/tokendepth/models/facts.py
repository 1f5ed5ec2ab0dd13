"""What a config of transformers says, as facts of ours, and back.

A translation reads some of our facts from their config and writes them into the settings of a new
one. Facts that a family cannot say are not looked for when writing: `convert` reads the new config
again and compares.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokendepth.models.config import DecoderConfig
from tokendepth.nn.rotary import Stretch

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_THEIRS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
_STATIC = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on the text."""


@dataclass(frozen=True, slots=True)
class Translation:
    """Some facts, both ways."""

    read: Callable[[Any], Mapping[str, Any]]
    """Their config to facts of ours, by name."""
    write: Callable[[DecoderConfig], Mapping[str, Any]] = lambda ours: {}
    """Our config to settings of theirs; nothing where theirs has no such setting."""


def activation(setting: str) -> Translation:
    """Their name of the activation."""

    def read(config: Any) -> dict[str, Any]:
        name = getattr(config, setting)
        if name not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ValueError(f"model: the activation {name!r} is not known; known are {known}")
        return {"activation": _ACTIVATIONS[name]}

    return Translation(read, lambda ours: {setting: _THEIRS[ours.activation]})


def rotary(*, partial: bool = False) -> Translation:
    """One kind of rotary positions for all blocks; `partial` where a part of a head may turn."""

    def read(config: Any) -> dict[str, Any]:
        given = config.rope_parameters
        facts = {"rotary_base": given["rope_theta"], "rotary_stretch": _stretch(given)}
        share = given.get("partial_rotary_factor") if partial else None
        if share is not None:
            facts["rotary_width"] = int(_even_heads(config)["head_dim"] * share)
        return facts

    def write(ours: DecoderConfig) -> dict[str, Any]:
        given = {"rope_theta": ours.rotary_base, **_scaling(ours.rotary_stretch)}
        if partial:
            given["partial_rotary_factor"] = ours.turned_width / ours.head_dim
        return {"rope_parameters": given}

    return Translation(read, write)


def rotary_by_window() -> Translation:
    """Bases of their own for blocks without and with a window (Gemma 3)."""

    def read(config: Any) -> dict[str, Any]:
        full, windowed = (
            config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention")
        )
        if windowed["rope_type"] != "default":
            raise ValueError(
                f"model: rotary type {windowed['rope_type']!r} in blocks with a window is not "
                "known; only 'default' is"
            )
        return {
            "rotary_base": full["rope_theta"],
            "rotary_stretch": _stretch(full),
            "window_rotary_base": windowed["rope_theta"],
        }

    def write(ours: DecoderConfig) -> dict[str, Any]:
        windowed = ours.window_rotary_base
        other = ours.rotary_base if windowed is None else windowed
        full = {"rope_theta": ours.rotary_base, **_scaling(ours.rotary_stretch)}
        plain = {"rope_theta": other, "rope_type": "default"}
        return {"rope_parameters": {"full_attention": full, "sliding_attention": plain}}

    return Translation(read, write)


def _stretch(given: Mapping[str, Any]) -> Stretch | None:
    kind = given.get("rope_type", "default")
    if kind not in _STATIC:
        raise ValueError(
            f"model: rotary type {kind!r} is not known, or changes with the length of the text, "
            f"which the decoder does not do; known are {', '.join(_STATIC)}"
        )
    if kind == "linear":
        return Stretch(factor=given["factor"])
    if kind == "llama3":
        return Stretch(
            factor=given["factor"],
            band=(given["low_freq_factor"], given["high_freq_factor"]),
            original_positions=given["original_max_position_embeddings"],
        )
    return None


def _scaling(stretch: Stretch | None) -> dict[str, Any]:
    if stretch is None:
        return {"rope_type": "default"}
    if stretch.band is None:
        return {"rope_type": "linear", "factor": float(stretch.factor)}
    return {
        "rope_type": "llama3",
        "factor": float(stretch.factor),
        "low_freq_factor": float(stretch.band[0]),
        "high_freq_factor": float(stretch.band[1]),
        "original_max_position_embeddings": stretch.original_positions,
    }


def one_window() -> Translation:
    """The same window in every block, or none (Mistral)."""

    def read(config: Any) -> dict[str, Any]:
        window = config.sliding_window
        return {"windows": () if window is None else (window,) * config.num_hidden_layers}

    return Translation(read, lambda ours: {"sliding_window": _window(ours)})


def windows_by_block(flag: str | None = None) -> Translation:
    """Blocks with the window and blocks without; `flag` is their setting that switches it on."""

    def read(config: Any) -> dict[str, Any]:
        known = {"full_attention": None, "sliding_attention": config.sliding_window}
        other = sorted(set(config.layer_types) - set(known))
        if other:
            raise ValueError(f"model: attention of type {other} is not known; known are {[*known]}")
        windows = tuple(known[kind] for kind in config.layer_types)
        return {"windows": windows if any(windows) else ()}

    def write(ours: DecoderConfig) -> dict[str, Any]:
        window = _window(ours)
        windows = ours.windows or (None,) * ours.num_blocks
        kinds = ["full_attention" if one is None else "sliding_attention" for one in windows]
        given: dict[str, Any] = {"layer_types": kinds}
        if window is not None or flag is not None:
            given["sliding_window"] = window
        return given if flag is None else {**given, flag: window is not None}

    return Translation(read, write)


def _window(ours: DecoderConfig) -> int | None:
    return next((window for window in ours.windows if window is not None), None)


def even_heads() -> Translation:
    """Heads share the width evenly, with as many for keys and values, unless it is said."""
    return Translation(_even_heads)


def _even_heads(config: Any) -> dict[str, Any]:
    heads = config.num_attention_heads
    return {
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }


def inner_width(setting: str) -> Translation:
    """Four times the width where nothing is set."""
    return Translation(
        lambda config: {"inner_width": getattr(config, setting) or 4 * config.hidden_size},
        lambda ours: {setting: ours.inner_width},
    )


def scaled_or_not(setting: str) -> Translation:
    """Scores divided by the root of the head's width, or as they are (GPT-2)."""
    return Translation(
        lambda config: {"attention_scale": None if getattr(config, setting) else 1.0},
        lambda ours: {setting: ours.attention_scale is None},
    )


def scale_by_scalar(setting: str) -> Translation:
    """Scores divided by the root of a setting (Gemma)."""

    def write(ours: DecoderConfig) -> dict[str, Any]:
        scale = ours.attention_scale
        return {setting: ours.head_dim if scale is None else round(scale**-2)}

    return Translation(lambda config: {"attention_scale": getattr(config, setting) ** -0.5}, write)


def embedding_by_root() -> Translation:
    """Embeddings times the root of the width (Gemma)."""
    return Translation(lambda config: {"embedding_scale": config.hidden_size**0.5})


def width_of_its_own(setting: str) -> Translation:
    """Embeddings of another width than the blocks, which the decoder does not have (OPT)."""

    def read(config: Any) -> dict[str, Any]:
        if getattr(config, setting) not in (None, config.hidden_size):
            raise ValueError(
                f"model: {setting}={getattr(config, setting)} with hidden_size="
                f"{config.hidden_size}; the decoder has no projection between the two"
            )
        return {}

    return Translation(read)
