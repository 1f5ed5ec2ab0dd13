"""What a folder keeps of a transport measurement, so that a second call goes on from it."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokendepth.measure.transition import Transition
from tokendepth.measure.transport_seen import Pair, Seen


class Kept:
    """What a folder holds of an earlier, interrupted measurement; nothing without a folder."""

    def __init__(self, folder: Path | None, mark: str) -> None:
        self._folder, self._mark = folder, mark
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def transitions(self) -> dict[Pair, Transition]:
        """Those of the same measurement; torn lines and those of other versions are left out."""
        found = {}
        if self._folder is not None and (self._folder / "transitions.jsonl").is_file():
            for line in (self._folder / "transitions.jsonl").read_text().splitlines():
                try:
                    stored = json.loads(line)
                    if stored.pop("fingerprint") != self._mark:
                        continue
                    each = Transition.from_dict(stored)
                except (json.JSONDecodeError, TypeError):
                    continue
                found[each.source, each.target + each.final_norm] = each
        return found

    def add(self, each: Transition) -> None:
        """One more finished transition."""
        if self._folder is not None:
            line = json.dumps({"fingerprint": self._mark, **each.to_dict()})
            with (self._folder / "transitions.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")

    def keep_seen(self, seen: Seen) -> None:
        """The clouds, so that the model need not run again."""
        if self._folder is None:
            return
        tensors = {
            f"{pair[0]}-{pair[1]}.{at}": end.contiguous()
            for pair, both in seen.ends.items()
            for at, end in enumerate(both)
        }
        told = {f"{pair[0]}-{pair[1]}": value for pair, value in seen.explained.items()}
        save_file(
            tensors,
            self._folder / "clouds.safetensors",
            metadata={
                "fingerprint": self._mark,
                "explained": json.dumps(told),
                "facts": json.dumps(seen.facts),
            },
        )

    def seen(self, pairs: Sequence[Pair]) -> Seen | None:
        """Clouds of the same measurement, if they are there and whole."""
        path = None if self._folder is None else self._folder / "clouds.safetensors"
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as stored:
                about = stored.metadata() or {}
                if about.get("fingerprint") != self._mark:
                    return None
                told = json.loads(about["explained"])
                ends = {
                    pair: (
                        stored.get_tensor(f"{pair[0]}-{pair[1]}.0"),
                        stored.get_tensor(f"{pair[0]}-{pair[1]}.1"),
                    )
                    for pair in pairs
                }
        except SafetensorError:
            return None
        explained = {pair: told[f"{pair[0]}-{pair[1]}"] for pair in pairs}
        return Seen(ends=ends, explained=explained, facts=json.loads(about["facts"]))
