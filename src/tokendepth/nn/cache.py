"""Keys and values of earlier tokens, and what a policy remembers of them.

Every slot stores the position it belongs to, and the loop that computed it. What a query sees
follows from these alone, never from a count of slots: layers may hold different tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tokendepth.nn.track import Newest, Track
from tokendepth.types import KeyValueRule

Purpose = str
"""`run` for the tokens' own pass; `check` for read-outs paid on the way."""
Key = tuple[Purpose, int, int]
"""Purpose, block and loop of a store; under `carried` the visits of a block share loop 0."""

GROWTH = 1.5
"""A store that is full grows by this factor, so that n tokens cost O(n) copies."""


@dataclass
class Store:
    """Keys and values of one block visit, or of all visits of a block under `carried`."""

    track: Track
    window: int | None = None
    """How many positions a query of this block sees, its own included."""
    room: int = 0
    """Slots to make place for at once."""
    parts: tuple[Tensor, Tensor] | None = None
    """Keys and values, each (batch, slot, key_value_head, head_dim)."""
    roomy: bool = False
    """They are the store's own, with slots behind the filled ones; not what a call computed."""

    @property
    def keys(self) -> Tensor | None:
        """Of the filled slots."""
        return None if self.parts is None else self.parts[0][:, : len(self.track)]

    @property
    def values(self) -> Tensor | None:
        """Likewise."""
        return None if self.parts is None else self.parts[1][:, : len(self.track)]

    def extend(
        self,
        keys: Tensor,
        values: Tensor,
        positions: Int[Tensor, "batch new"],
        loop: int,
        *,
        in_order: bool = False,
    ) -> None:
        """Add slots. Empty ones (position -1) must hold finite numbers.

        The first ones are kept as they are; from the second time on there is room to grow. Where
        gradients are enabled, nothing is written in place: every call copies the store.
        """
        before = len(self.track)
        if self.parts is None:
            self.parts = keys, values
        elif torch.is_grad_enabled():  # queries alone may want one, and attention keeps the keys
            old_keys, old_values = (part[:, :before] for part in self.parts)
            self.parts = torch.cat((old_keys, keys), dim=1), torch.cat((old_values, values), dim=1)
            self.roomy = False
        else:
            after = before + positions.shape[1]
            stored_keys, stored_values = self._room_for(before, after)
            stored_keys[:, before:after] = keys
            stored_values[:, before:after] = values
        self.track = self.track.extended(positions, loop, in_order=in_order)

    def claim(
        self, positions: Int[Tensor, "batch new"], loop: int, *, in_order: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Make place for new slots behind those there are, for the caller to fill.

        Returns:
            Keys and values, (batch, slot, key_value_head, head_dim), with room beyond the new
            slots. There must be some already.
        """
        before = len(self.track)
        self.track = self.track.extended(positions, loop, in_order=in_order)
        return self._room_for(before, len(self.track))

    def _room_for(self, before: int, after: int) -> tuple[Tensor, Tensor]:
        assert self.parts is not None
        if not self.roomy or after > self.parts[0].shape[1]:
            size = max(after, self.room, int(GROWTH * before))
            keys, values = (_grown(part[:, :before], size) for part in self.parts)
            self.parts, self.roomy = (keys, values), True
        return self.parts

    def renew(self) -> None:
        """Begin again: every token is about to be stored anew, and nobody looks at what was."""
        self.track, self.parts, self.roomy = Track(), None, False

    def newest(self, found: Newest) -> tuple[Tensor, Tensor]:
        """Keys and values by position, each (batch, position, key_value_head, head_dim)."""
        assert self.parts is not None
        keys, values = self.parts
        rows = torch.arange(len(keys), device=keys.device)[:, None] * keys.shape[1]
        flat = (found.slots + rows).flatten()
        shape = (*found.slots.shape, *keys.shape[2:])
        return tuple(  # pyright: ignore[reportReturnType]
            part.flatten(0, 1).index_select(0, flat).view(shape) for part in (keys, values)
        )

    def crop(self, seen: Int[Tensor, " batch"], uniform: int | None) -> None:
        """Forget positions from `seen` on."""
        self.track = self.track.cropped(seen, uniform)

    def drop_stale(self, oldest: Int[Tensor, " batch"]) -> None:
        """Give up slots at the front that lie before the window of every later query."""
        before, self.track = len(self.track), self.track.without_stale(oldest)
        count = before - len(self.track)
        if count and self.parts is not None:
            self.parts = self.parts[0][:, count:], self.parts[1][:, count:]

    def reorder(self, rows: Int[Tensor, " row"]) -> None:
        """Take these rows of the batch."""
        self.track = self.track.reordered(rows)
        if self.parts is None:
            return
        room, size = self.parts[0].shape[1], len(self.track)
        keys, values = (part[:, :size][rows] for part in self.parts)
        self.parts = (_grown(keys, room), _grown(values, room)) if self.roomy else (keys, values)

    @property
    def nbytes(self) -> int:
        """Memory held for keys and values, room to grow included."""
        return sum(part.untyped_storage().nbytes() for part in self.parts or ())


@dataclass(frozen=True)
class Memory:
    """What a policy remembers from call to call: values that belong to positions of each row.

    A value may depend on tokens up to its position, so that forgetting the tokens from some
    position on forgets what was made of them.
    """

    positions: Int[Tensor, "batch slot"]
    """-1 where a row has nothing in a slot."""
    values: Mapping[str, Tensor]
    """By name, each (batch, slot, ...)."""

    def cropped(self, seen: Int[Tensor, " batch"]) -> "Memory":
        """Without what was made of positions from `seen` on."""
        return replace(self, positions=self.positions.where(self.positions < seen[:, None], -1))

    def reordered(self, rows: Int[Tensor, " row"]) -> "Memory":
        """Of these rows of the batch."""
        return Memory(
            self.positions[rows], {name: value[rows] for name, value in self.values.items()}
        )


@dataclass
class Cache:
    """All stores of a decoder, how many tokens each row has seen, and the policy's memory.

    Args:
        rule: whether skipped rows leave keys and values.
        room: tokens to make place for at once; more grow by `GROWTH`.
        rewind: how many tokens `crop` must be able to take back in blocks with a window, which
            forget what lies further behind.
    """

    rule: KeyValueRule
    room: int = 0
    rewind: int = 0
    stores: dict[Key, Store] = field(default_factory=dict)
    seen: Int[Tensor, " batch"] | None = None
    """Tokens of each row so far, padding not counted."""
    uniform: int | None = 0
    """Tokens so far, where all rows have seen as many; None where they may differ."""
    memory: Memory | None = None
    views: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)
    """Of blocks that ran together, what the way of few rows needs from call to call."""
    _start: Track = field(default_factory=Track, repr=False)
    _most: Int[Tensor, " batch"] | None = field(default=None, repr=False)
    """The most tokens that each row has ever seen: windows have given up what lies behind."""

    def store(self, purpose: Purpose, block: int, loop: int, window: int | None = None) -> Store:
        """The store of a block visit; under `carried` the visits of a block share one."""
        key = (purpose, block, 0 if self.rule == "carried" else loop)
        found = self.stores.get(key)
        if found is None:
            found = self.stores[key] = Store(self._start, window, self.room)
        return found

    def advance(self, mask: Tensor, *, full: bool) -> None:
        """Count the tokens of a call, after it."""
        new = mask.sum(dim=-1)
        self.seen = new if self.seen is None else self.seen + new
        uniform = self.uniform
        self.uniform = uniform + mask.shape[1] if full and uniform is not None else None
        self._most = self.seen if self._most is None else torch.maximum(self._most, self.seen)
        oldest = {window: self._oldest(window) for window in self._windows()}
        for store in self.stores.values():
            if store.window is not None:
                store.drop_stale(oldest[store.window])

    def crop(self, length: int | Int[Tensor, " batch"]) -> None:
        """Forget all tokens of each row but the first `length` (of each row, if a tensor).

        A negative number takes that many tokens back. What a policy remembers of the forgotten
        tokens goes too.

        Raises:
            ValueError: a length beyond what was seen, or before what windows have given up.
        """
        if self.seen is None:
            if bool((torch.as_tensor(length) != 0).any()):
                raise ValueError(f"length: got {length}; the cache is empty")
            return
        given = torch.as_tensor(length, device=self.seen.device)
        if given.ndim and given.shape != self.seen.shape:
            raise ValueError(
                f"length: got shape {tuple(given.shape)} for {len(self.seen)} rows; give one "
                "number, or one a row"
            )
        given = given.expand(self.seen.shape)
        kept = torch.where(given < 0, self.seen + given, given)
        if bool(((kept < 0) | (kept > self.seen)).any()):
            raise ValueError(f"length: got {length}; rows have seen {self.seen.tolist()} tokens")
        for window in self._windows():
            lost = (kept > 0) & (self._oldest(window) > (kept - window + 1).clamp_min(0))
            if bool(lost.any()):
                raise ValueError(
                    f"length: got {length}; blocks with a window of {window} positions can take "
                    f"back {self.rewind} tokens; make the cache with decoder.cache(rewind=...)"
                )
        self._crop_to(kept)

    def _windows(self) -> set[int]:
        return {store.window for store in self.stores.values() if store.window is not None}

    def _oldest(self, window: int) -> Int[Tensor, " batch"]:
        """The oldest position that a block of this window still holds, of each row."""
        assert self._most is not None
        return (self._most - window + 1 - self.rewind).clamp_min(0)

    def _crop_to(self, kept: Int[Tensor, " batch"]) -> None:
        first = int(kept[0])
        same = self.uniform is not None and bool((kept == first).all())
        self.uniform = first if same else None
        for store in self.stores.values():
            store.crop(kept, self.uniform)
        self.seen = kept.clone()
        if self._most is not None:  # nothing lies behind a row that begins again
            self._most = self._most.where(kept > 0, 0)
        self.memory = None if self.memory is None else self.memory.cropped(kept)

    def reorder(self, rows: Int[Tensor, " row"]) -> None:
        """Take these rows of the batch: in another order, some twice (beams) or not at all.

        Raises:
            ValueError: a row that is not there.
        """
        if self.seen is not None and bool(((rows < 0) | (rows >= len(self.seen))).any()):
            raise ValueError(
                f"rows: got {rows.tolist()}; the cache holds rows 0 to {len(self.seen) - 1}"
            )
        for store in self.stores.values():
            store.reorder(rows)
        self.seen = None if self.seen is None else self.seen[rows]
        self._most = None if self._most is None else self._most[rows]
        self.memory = None if self.memory is None else self.memory.reordered(rows)

    def reset(self) -> None:
        """Forget everything, for a new batch."""
        self.stores.clear()
        self.views.clear()
        self.seen, self._most, self.uniform, self.memory = None, None, 0, None
        self._start = Track()

    @property
    def tracks(self) -> Mapping[Key, Track]:
        """Which tokens each store holds now; later calls do not change this."""
        return {key: store.track for key, store in self.stores.items()}

    @property
    def nbytes(self) -> int:
        """Memory held for keys and values, room to grow included."""
        return sum(store.nbytes for store in self.stores.values())

    def save(self, path: Path | str) -> None:
        """Write everything to one safetensors file."""
        tensors: dict[str, Tensor] = {}
        if self.seen is not None and self._most is not None:
            tensors |= {"seen": self.seen, "most": self._most.clone()}
        stores = []
        for number, (key, store) in enumerate(self.stores.items()):
            track = store.track
            stores.append([*key, store.window, track.loops, track.in_order])
            parts = {"keys": store.keys, "values": store.values, "positions": track.positions}
            for name, part in parts.items():
                if part is not None:
                    tensors[f"stores.{number}.{name}"] = part.contiguous().clone()
        if self.memory is not None:
            parts = {"memory.positions": self.memory.positions}
            parts |= {f"memory.values.{n}": v for n, v in self.memory.values.items()}
            tensors |= {name: part.contiguous().clone() for name, part in parts.items()}
        facts = {
            "rule": self.rule,
            "room": self.room,
            "rewind": self.rewind,
            "uniform": self.uniform,
            "stores": stores,
        }
        save_file(tensors, path, {"cache": json.dumps(facts)})


def load_cache(path: Path | str, device: str | torch.device = "cpu") -> Cache:
    """A cache that `Cache.save` has written.

    Raises:
        ValueError: a file that holds something else.
    """
    facts = None
    try:
        with safe_open(path, framework="pt", device=str(device)) as stored:
            facts = json.loads((stored.metadata() or {}).get("cache", "null"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError:
        tensors = {}
    if facts is None:
        raise ValueError(f"path: {path} holds no cache; write one with Cache.save")
    cache = Cache(facts["rule"], facts["room"], facts["rewind"])
    cache.seen, cache.uniform = tensors.get("seen"), facts["uniform"]
    cache._most = tensors.get("most")
    track = Track()
    for number, (purpose, block, loop, window, loops, in_order) in enumerate(facts["stores"]):
        at = f"stores.{number}."
        read = Track(tensors.get(at + "positions"), tuple(loops), in_order)
        track = track if track.same_as(read) else read
        keys, values = tensors.get(at + "keys"), tensors.get(at + "values")
        parts = None if keys is None or values is None else (keys, values)
        cache.stores[(purpose, block, loop)] = Store(track, window, cache.room, parts)
    if "memory.positions" in tensors:
        prefix = "memory.values."
        values = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        cache.memory = Memory(tensors["memory.positions"], values)
    return cache


def _grown(part: Tensor, size: int) -> Tensor:
    """A copy with room behind it."""
    room = part.new_empty((part.shape[0], size, *part.shape[2:]))
    room[:, : part.shape[1]] = part
    return room
