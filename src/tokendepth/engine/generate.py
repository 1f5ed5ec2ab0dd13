"""Generate text: prompts in, continuations out, with the depth and confidence of every token."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tokendepth.adapters.load import Loaded, load
from tokendepth.depth.few import warm_up
from tokendepth.engine.beams import beam_search
from tokendepth.engine.decode import DEFAULT_NEW_TOKENS, GenerateOptions, NewToken, stream
from tokendepth.engine.generation import Continuation, End, Generation
from tokendepth.text.documents import tokenize_all
from tokendepth.text.pieces import Pieces

OnText = Callable[[int, str], None]
"""Told (prompt, what its text has grown by) whenever whole characters are there."""


def generate(
    prompts: str | Sequence[str],
    model: str | Path | Loaded = "smollm2",
    *,
    chat: bool = False,
    stops: Collection[int] | None = None,
    row_keys: Sequence[int] | None = None,
    on_text: OnText = lambda row, text: None,
    on_step: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> Generation:
    """Continue texts.

    Args:
        prompts: one text or several.
        model: what `tokendepth.load` takes, or what it returned.
        chat: wrap each prompt in the model's chat template, as a message of the user.
        stops: token ids that end a text; those of the model's own settings unless given.
        row_keys: keys of the prompts for keyed draws; 0, 1, ... unless given.
        on_text: told what each text grows by; not with beams, which grow by none.
        on_step: told (steps done, steps at most).
        options: the fields of `GenerateOptions`; `stop` may be one string, `depth` one number.

    Raises:
        ValueError: an empty prompt, an option out of range, a model whose family has no decoder
            here, or a policy that looks at later tokens.
    """
    given = GenerateOptions(**_in_tuples(options))
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    given.check(len(texts))
    loaded = model if isinstance(model, Loaded) else load(model)
    ids = [document.ids for document in tokenize_all(texts, loaded.tokenizer, chat=chat)]
    ends = loaded.stop_ids if stops is None else frozenset(stops)
    decoder = loaded.decoder
    warm_up(decoder.embedding.weight)
    started = time.perf_counter()
    texts_of = [_Text(loaded, given.stop, ends) for _ in ids]
    if given.beams > 1:
        for best in beam_search(decoder, ids, given, stops=ends, row_keys=row_keys):
            for token in best:
                texts_of[token.row].add(token)
    else:
        steps = stream(
            decoder, ids, given, ended=lambda row, new: texts_of[row].ends(new), row_keys=row_keys
        )
        for number, made in enumerate(steps):
            for token in made:
                grown = texts_of[token.row].add(token)
                if grown:
                    on_text(token.row, grown)
            on_step(number + 1, given.max_new_tokens or DEFAULT_NEW_TOKENS)
        for row, text in enumerate(texts_of):
            if text.waiting:
                on_text(row, text.waiting)
    return Generation(
        model=loaded.title,
        policy=type(decoder.policy).__name__,
        num_layers=len(decoder.schedule.visits),
        continuations=tuple(
            text.continuation(prompt) for text, prompt in zip(texts_of, texts, strict=True)
        ),
        seconds=time.perf_counter() - started,
        measured={
            **loaded.facts(),
            **{name: value for name, value in vars(given).items() if name != "sampling"},
            **vars(given.sampling),
            "chat": chat,
            "key_value_rule": decoder.config.key_value_rule,
        },
    )


def _in_tuples(options: dict[str, Any]) -> dict[str, Any]:
    """One stop string and one depth as the tuples they would be as several."""
    kinds = {"stop": str, "depth": int}
    alone = [name for name, kind in kinds.items() if isinstance(options.get(name), kind)]
    return {**options, **{name: (options[name],) for name in alone}}


class _Text:
    """One continuation: its tokens, and its text up to where it ends."""

    def __init__(self, loaded: Loaded, stop: Sequence[str], ends: Collection[int]) -> None:
        self.pieces, self.bytes = Pieces(loaded.tokenizer), dict[int, bytes]()
        self.stop, self.stop_ids = stop, ends
        self.tokens: list[NewToken] = []
        self.shown, self.end = "", End.LENGTH

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether the text ends with the last of its tokens."""
        return ids[-1] in self.stop_ids or self._cut(self._decode(ids)) is not None

    def add(self, token: NewToken) -> str:
        """Take a token; return the whole characters that can be shown now."""
        self.tokens.append(token)
        if token.id in self.stop_ids:
            self.end = End.TOKEN
            return ""
        text = self.text()
        whole = text.rstrip("\ufffd")  # a character of which bytes are still to come
        held = max((_overlap(whole, one) for one in self.stop), default=0)
        ready = whole[: len(whole) - held]
        grown = ready[len(self.shown) :]
        self.shown += grown
        return grown

    def text(self) -> str:
        """All of it, without what it stopped at."""
        ids = [token.id for token in self.tokens]
        text = self._decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)
        at = self._cut(text)
        if at is not None:
            self.end = End.STRING
        return text if at is None else text[:at]

    @property
    def waiting(self) -> str:
        """Characters that were held back, since they might have been the start of a stop."""
        return self.text()[len(self.shown) :]

    def continuation(self, prompt: str) -> Continuation:
        """What the result holds."""
        ids = [token.id for token in self.tokens]
        return Continuation(
            prompt=prompt,
            text=self.text(),
            ids=tuple(ids),
            pieces=tuple(self.pieces.texts(ids)),
            depths=tuple(token.depth for token in self.tokens),
            confidences=tuple(token.confidence for token in self.tokens),
            end=self.end,
        )

    def _decode(self, ids: Sequence[int]) -> str:
        """From bytes: tokenizers drop a first space, and some spoil whole runs of bytes."""
        for one in set(ids).difference(self.bytes):
            self.bytes[one] = self.pieces.raw(one)
        return b"".join(self.bytes[one] for one in ids).decode("utf-8", errors="replace")

    def _cut(self, text: str) -> int | None:
        """Where the first stop string begins."""
        found = [at for one in self.stop if (at := text.find(one)) >= 0]
        return min(found, default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if stop.startswith(text[-size:])), 0)
