"""What decoding promises of batches, ends, streams, limits and turns."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import tokendepth
from tests.contract import toys
from tokendepth.depth.dense import Dense
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.engine.beams import beam_search
from tokendepth.engine.decode import GenerateOptions, NewToken, stream
from tokendepth.engine.generate import _Text, generate
from tokendepth.engine.generation import End
from tokendepth.engine.sampling import Sampling
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import looped, stack

VOCAB, LENGTHS, KEYS = 40, (3, 7, 12, 1), (8, 2, 5, 11)
CONFIG = DecoderConfig(
    vocab_size=VOCAB, width=16, num_blocks=4, num_heads=4, num_key_value_heads=2, head_dim=4,
    inner_width=24, tied_head=False, adapter=True,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def decoder(policy=None, schedule=None, dtype=torch.float64, **fields):
    torch.manual_seed(4)
    config = {name: getattr(CONFIG, name) for name in DecoderConfig.__slots__}
    made = Decoder(DecoderConfig(**{**config, **fields}), schedule, policy)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter) + (parameter.ndim == 1))
    return made.to(dtype).eval()


def prompts(lengths=LENGTHS, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lengths]


def tokens_of(made, rows, *, stops=(), keys=KEYS, cache=None, **options):
    """The new tokens of each row."""
    new = [[] for _ in rows]
    options.setdefault("max_new_tokens", 14)
    steps = stream(
        made, rows, GenerateOptions(**options), ended=lambda row, ids: ids[-1] in stops,
        row_keys=keys[: len(rows)], cache=cache,
    )  # fmt: skip
    for step in steps:
        for token in step:
            new[token.row].append(token)
    return new


def ids(rows):
    return [[token.id for token in row] for row in rows]


SAMPLED = Sampling(temperature=1.0, top_k=20, top_p=0.95, repetition_penalty=1.2, seed=6)
POLICIES = {
    "dense": lambda: (None, None),
    "random": lambda: (tokendepth.RandomKeep(0.5, seed=2), None),
    "gate": lambda: (toys.UpdateGate(16), None),
    "tired": lambda: (toys.Tired(16), None),
    "halt": lambda: (toys.HaltByReadOut(0.5), looped(prelude=1, core=2, coda=1, loops=3)),
}


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_ragged_batch_is_its_singles_and_the_pass_without_a_cache(policy, sampling):
    chosen, schedule = POLICIES[policy]()
    made, rows = decoder(chosen, schedule), prompts()
    free = ids(tokens_of(made, rows, sampling=sampling))
    assert len({tuple(row) for row in free}) == len(rows)
    stop = next(token for row in free for token in row[2:9] if sum(token in r for r in free) < 4)
    got = tokens_of(made, rows, stops=(stop,), sampling=sampling, chunk=4)
    assert len({len(row) for row in got}) > 1
    for row, prompt in enumerate(rows):
        (alone,) = tokens_of(
            made, [prompt], stops=(stop,), sampling=sampling, keys=KEYS[row : row + 1]
        )
        assert ids([alone]) == ids([got[row]])
        end = free[row].index(stop) + 1 if stop in free[row] else len(free[row])
        assert ids([got[row]])[0] == free[row][:end]
        _as_without_a_cache(made, prompt, got[row], KEYS[row])


def _as_without_a_cache(made, prompt, new, key):
    """Depth and confidence of each token, from one pass over the whole text."""
    whole = torch.tensor([[*prompt, *(token.id for token in new)]])
    with torch.no_grad():
        output = made(whole, routing=_hard(made), row_keys=torch.tensor([key]))
    before = slice(len(prompt) - 1, whole.shape[1] - 1)
    depths = output.executed[0, before].sum(-1)
    assert [token.depth for token in new] == depths.tolist()
    sure = output.logits[0, before].softmax(-1).gather(1, whole[0, len(prompt) :, None])[:, 0]
    torch.testing.assert_close(
        torch.tensor([token.confidence for token in new], dtype=torch.float64), sure,
        rtol=0, atol=1e-9,
    )  # fmt: skip


def _hard(made):
    return "hard" if "hard" in made.policy.routings else None


def test_rows_that_have_ended_leave_the_batch():
    made, rows, widths = decoder(), prompts(), []
    free = ids(tokens_of(made, rows))
    stop = next(token for row in free for token in row[2:9] if sum(token in r for r in free) < 4)
    handle = made.blocks[1].feed_forward.register_forward_hook(
        lambda module, given, out: widths.append(given[0].flatten(0, -2).shape[0])
    )
    got = tokens_of(made, rows, stops=(stop,))
    handle.remove()
    ends = [len(row) for row in got]
    open_rows = [sum(end > step for end in ends) for step in range(1, max(ends))]
    assert widths == [sum(LENGTHS), *open_rows]
    assert min(open_rows) < len(rows)


@pytest.mark.parametrize("executor", ["dense", "gathered", "feed_forward"])
def test_limits_of_depth_are_truncated_models(executor):
    made, rows, depths = decoder(), prompts(), (2, 4, 1, 3)
    got = tokens_of(made, rows, depth=depths, executor=executor)
    for row, prompt in enumerate(rows):
        short = decoder(num_blocks=depths[row], schedule=stack(depths[row]), adapter=False)
        short.load_state_dict(made.state_dict(), strict=False)
        (alone,) = tokens_of(short, [prompt])
        assert ids([alone]) == ids([got[row]])
        assert {token.depth for token in got[row]} == {depths[row]}
    one = tokens_of(made, rows, depth=(2,), executor=executor)
    assert {token.depth for row in one for token in row} == {2}


def test_a_limit_goes_with_the_policy_and_with_rows_that_leave():
    """Decisions of the policy below the limit, nothing beyond; the limits stay with their rows."""
    made, rows, depths = decoder(tokendepth.RandomKeep(0.6, seed=1)), prompts(), (3, 1, 4, 2)
    free = ids(tokens_of(made, rows, depth=depths))
    stop = next(token for row in free for token in row[2:9] if sum(token in r for r in free) < 4)
    got = tokens_of(made, rows, depth=depths, stops=(stop,))
    assert len({len(row) for row in got}) > 1
    for row, prompt in enumerate(rows):
        (alone,) = tokens_of(
            made, [prompt], depth=(depths[row],), stops=(stop,), keys=KEYS[row : row + 1]
        )
        assert [(one.id, one.depth) for one in alone] == [(one.id, one.depth) for one in got[row]]
        assert max(token.depth for token in alone) <= depths[row]


@pytest.mark.parametrize("beams", [1, 3])
def test_limits_hold_under_beams_too(beams):
    made, (prompt, other) = decoder(), prompts((5, 2))
    options = GenerateOptions(max_new_tokens=6, beams=beams, depth=(2, 3))
    got = beam_search(made, [prompt, other], options)
    assert [{token.depth for token in row} for row in got] == [{2}, {3}]
    short = decoder(num_blocks=2, adapter=False)
    short.load_state_dict(made.state_dict(), strict=False)
    alone = beam_search(short, [prompt], GenerateOptions(max_new_tokens=6, beams=beams))
    assert [[token.id for token in row] for row in alone] == [[token.id for token in got[0]]]
    if beams == 1:
        assert ids(tokens_of(short, [prompt], max_new_tokens=6)) == ids(alone)


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_prompts_in_pieces_give_the_same(chunk):
    made, rows = decoder(tokendepth.RandomKeep(0.5)), prompts()
    assert ids(tokens_of(made, rows, chunk=chunk)) == ids(tokens_of(made, rows))


@pytest.mark.parametrize("policy", ["dense", "tired", "halt"])
def test_several_turns_on_one_cache(policy):
    chosen, schedule = POLICIES[policy]()
    made = decoder(chosen, schedule)
    cache, said = made.cache(), [[], [], []]
    for turn, lengths in enumerate(((3, 1, 6), (2, 4, 1), (1, 1, 1))):
        more = [
            [*row[-1:], *new] if row else new
            for row, new in zip(said, prompts(lengths, turn), strict=True)
        ]
        said = [row[:-1] + new for row, new in zip(said, more, strict=True)]
        got = ids(tokens_of(made, more, cache=cache, max_new_tokens=4))
        assert got == ids(tokens_of(made, said, max_new_tokens=4))
        said = [row + new for row, new in zip(said, got, strict=True)]
        assert cache.seen.tolist() == [len(row) - 1 for row in said]


def test_under_a_cache_of_ones_own_all_rows_run_to_the_end():
    made, rows = decoder(), prompts()
    free, cache = ids(tokens_of(made, rows)), made.cache()
    stop = free[0][3]
    got = ids(tokens_of(made, rows, stops=(stop,), cache=cache))
    assert got == [row[: row.index(stop) + 1] if stop in row else row for row in free]
    assert cache.seen.tolist() == [length + 13 for length in LENGTHS]


def test_learned_positions_end():
    made = decoder(positions="learned", max_positions=12)
    full = tokens_of(made, prompts((9,)), max_new_tokens=4)
    assert len(full[0]) == 4, "the last new token needs no position"
    with pytest.raises(ValueError, match=r"max_new_tokens: 13 positions .*; give at most 4"):
        tokens_of(made, prompts((9,)), max_new_tokens=5)
    cache = made.cache()
    tokens_of(made, prompts((5,)), max_new_tokens=3, cache=cache)
    with pytest.raises(ValueError, match=r"max_new_tokens: 13 positions .*; give at most 4"):
        tokens_of(made, prompts((2,)), max_new_tokens=5, cache=cache)
    with pytest.raises(ValueError, match="shorter prompt"):
        tokens_of(made, prompts((14,)), max_new_tokens=5)


def test_a_policy_that_looks_ahead_is_refused():
    made = decoder(toys.BatchTopK(16, 0.5))
    with pytest.raises(ValueError, match=r"routing: under 'hard' BatchTopK decides by later"):
        tokens_of(made, prompts())


def test_nothing_is_left_behind():
    made, state = decoder().train(), torch.get_rng_state()
    weights = {name: value.clone() for name, value in made.state_dict().items()}
    tokens_of(made, prompts(), sampling=SAMPLED, depth=(2,))
    assert made.training
    assert isinstance(made.policy, Dense)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], now) for name, now in made.state_dict().items())


def test_logits_that_are_not_finite_are_said():
    made = decoder()
    with torch.no_grad():
        made.final_norm.weight[3] = torch.nan
    with pytest.raises(
        tokendepth.NonFiniteError, match="logits: NaN or infinity after 3 tokens .* row key 8;"
    ):
        tokens_of(made, prompts())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: got 0; it must be at least 1"),
        ({"beams": 0}, "beams: got 0"),
        ({"chunk": 0}, "chunk: got 0"),
        ({"depth": (1, 2)}, "depth: got 2 limits for 4 prompts"),
        ({"depth": (9,)}, r"depth: got 9; spans of this schedule end at \[1, 2, 3, 4\]"),
        ({"stop": ("",)}, "stop: got an empty string"),
        ({"routing": "soft"}, "routing: got 'soft'; Dense has hard"),
        ({"beams": 2, "stop": ("a",)}, "beams: beam search takes"),
        ({"beams": 2, "sampling": Sampling(temperature=1.0)}, "beams: beam search takes"),
        ({"sampling": Sampling(temperature=-1.0)}, "temperature: got -1.0"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature: got nan"),
        ({"sampling": Sampling(temperature=1.0, top_k=0)}, "top_k: got 0"),
        ({"sampling": Sampling(temperature=1.0, top_p=0.0)}, "top_p: got 0.0"),
        ({"sampling": Sampling(temperature=1.0, top_p=1.1)}, "top_p: got 1.1"),
        ({"sampling": Sampling(top_k=3)}, "temperature: 0 takes the most likely"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "repetition_penalty: got 0.0"),
        ({"length_penalty": float("nan")}, "length_penalty: got nan; it must be a finite number"),
    ],
)
def test_a_bad_option_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        tokens_of(decoder(), prompts(), **options)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "prompts: got none"),
        ([[1], []], "prompts: prompt 2 has no tokens"),
        ([[1, VOCAB]], f"prompts: prompt 1 has token {VOCAB}; the model knows 0 to {VOCAB - 1}"),
        ([[-1]], "prompts: prompt 1 has token -1"),
    ],
)
def test_a_bad_prompt_is_named(rows, said):
    with pytest.raises(ValueError, match=said):
        tokens_of(decoder(), rows)


def test_keys_and_caches_of_another_batch_are_refused():
    made = decoder()
    with pytest.raises(ValueError, match="row_keys: got 1 for 4 prompts"):
        tokens_of(made, prompts(), keys=(1,))
    cache = made.cache()
    tokens_of(made, prompts(), cache=cache)
    with pytest.raises(ValueError, match="cache: it holds 4 rows for 2 prompts"):
        tokens_of(made, prompts()[:2], cache=cache)


# Texts: the tokens are given, the text is what they must become.


def _fallback():
    """A tokenizer that spells unknown characters by bytes, each of which decodes to U+FFFD."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁be", "▁", "a"]
    backend = Tokenizer(models.BPE({t: at for at, t in enumerate(tokens)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def _streamed(tokenizer, new, stop=(), stop_ids=()):
    """(what was shown, step by step; the final text; why it ended), ended as decoding would."""
    loaded = tokendepth.Loaded(title="t", model=torch.nn.Linear(1, 1), tokenizer=tokenizer)
    text = _Text(loaded, stop, stop_ids)
    shown = []
    for number, token in enumerate(new):
        shown.append(text.add(NewToken(row=0, id=token, depth=1, confidence=0.5)))
        if text.ends(new[: number + 1]):
            break
    shown.append(text.waiting)
    made = text.continuation("p")
    return shown, made.text, made.end


EMOJI = "go 🙂🎉 on, naïve ones"


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_characters_of_several_tokens_are_shown_whole(kind, tokenizer):
    if kind == "byte fallback":
        tokenizer = _fallback()
        new = [3 + byte for byte in EMOJI.encode()]
    else:
        new = tokenizer(EMOJI)["input_ids"]
    shown, text, end = _streamed(tokenizer, new)
    assert "".join(shown) == text == EMOJI
    assert end is End.LENGTH
    assert not any("\ufffd" in part for part in shown)
    cut = new[: len("go 🙂".encode()) - 1] if kind == "byte fallback" else new[:5]
    shown, text, _ = _streamed(tokenizer, cut)
    assert "".join(shown) == text
    assert not any("\ufffd" in part for part in shown[:-1])


def test_the_space_before_the_first_new_word_is_kept():
    tokenizer = _fallback()
    (word,) = tokenizer.convert_tokens_to_ids(["▁be"])
    assert _streamed(tokenizer, [word, word])[1] == " be be"


@pytest.mark.parametrize(
    ("whole", "stop", "text"),
    [
        ("a thing and END more", ("END",), "a thing and "),
        ("a thing and END more", ("ENDS", "thing and", "more"), "a "),
        ("so 🙂 on", ("🙂",), "so "),
        ("so ab🙂 on", ("b🙂",), "so a"),
        ("so ab🙂 on", ("b🎉", "ab🙂 on"), "so "),
        ("EENEND", ("END",), "EEN"),
        ("EENEN", ("END",), "EENEN"),
        ("ENDless", ("END",), ""),
        ("the question is", ("question is that",), "the question is"),
    ],
)
def test_a_stop_string_is_cut_and_nothing_shown_is_cut_later(whole, stop, text, tokenizer):
    shown, made, end = _streamed(tokenizer, tokenizer(whole)["input_ids"], stop)
    assert "".join(shown) == made == text
    assert end is (End.LENGTH if made == whole else End.STRING)


def test_a_stop_token_is_no_part_of_the_text(tokenizer):
    new = [*tokenizer("to be EN")["input_ids"], 1, 7]
    shown, made, end = _streamed(tokenizer, new, ("END",), {1})
    assert "".join(shown) == made == "to be EN"
    assert end is End.TOKEN


def _spelled(tokenizer, new):
    """As the tokenizer decodes them; ids that it has no token for stand as numbers."""
    runs = itertools.groupby(new, len(tokenizer).__gt__)
    return "".join(
        tokenizer.decode(list(run)) if there else "".join(f"<{one}>" for one in run)
        for there, run in runs
    )


def test_generate_puts_it_together(llama):
    grown = {0: "", 1: ""}
    prompts_of = ["To be, or not to be.", "Naïve 🙂"]

    def on_text(row, text):
        grown[row] += text

    result = generate(prompts_of, llama, max_new_tokens=12, stops=(), on_text=on_text)
    for row, one in enumerate(result.continuations):
        assert one.prompt == prompts_of[row]
        assert grown[row] == one.text == _spelled(llama.tokenizer, one.ids)
        assert (len(one.ids), one.end) == (12, End.LENGTH)
        alone = generate(prompts_of[row], llama, max_new_tokens=12, stops=()).continuations[0]
        assert alone.ids == one.ids
    assert result.num_tokens == 24
    assert result.mean_depth == result.num_layers == 4
    stop = result.continuations[0].text[3:5]
    cut = generate(prompts_of, llama, max_new_tokens=12, stops=(), stop=stop)
    assert cut.continuations[0].text == result.continuations[0].text.split(stop)[0]
    assert cut.continuations[0].end is End.STRING
    beams = generate(prompts_of, llama, max_new_tokens=5, beams=3, depth=2)
    assert beams.mean_depth == 2
    assert beams.measured["beams"] == 3


def test_a_fixed_exit_generates_as_a_limit_does(llama):
    made = decoder(FixedExit(2))
    rows = prompts()
    assert ids(tokens_of(made, rows)) == ids(tokens_of(decoder(), rows, depth=(2,)))
