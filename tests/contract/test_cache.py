"""Caches: whatever was cut, taken back, reordered or written to disk, the rest goes on exactly.

The reference is always one pass without a cache over the tokens that should be there.
"""

import pytest
import torch

from tests.contract.cases import CAUSAL, EXECUTORS, VOCAB, build
from tests.contract.test_contract import close, run
from tests.contract.test_few_rows import decoder as llama
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.models.saved import save_model
from tokendepth.nn.cache import GROWTH, Cache, Memory, load_cache

FIRST = (1, 3, 9, 7, 1, 2, 5)
THEN = (4, 2, 1, 3, 5, 2, 4)
KEYS = torch.arange(len(FIRST)) + 5


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _one_of_each():
    """A case for each policy and rule, with whatever block it was given; windows among them."""
    found = {}
    for case in CAUSAL:
        if case.routing in (None, "hard"):
            found.setdefault((case.policy, case.rule), case)
    windowed = [case for case in CAUSAL if case.block in ("window", "sandwich")][:4]
    return [*found.values(), *(case for case in windowed if case not in found.values())]


EACH = [
    pytest.param(case, EXECUTORS[number % 3], id=f"{case}-{EXECUTORS[number % 3]}")
    for number, case in enumerate(_one_of_each())
]
each = pytest.mark.parametrize(("case", "executor"), EACH)


def each_with(name, values, but=()):
    """Every case with one of these, the rest of the product `slow`; not the policies of `but`."""
    rows = []
    for number, one in enumerate(one for one in EACH if one.values[0].policy not in but):
        for at, value in enumerate(values):
            marks = () if at == number % len(values) else pytest.mark.slow
            rows.append(pytest.param(*one.values, value, marks=marks, id=f"{one.id}-{value}"))
    return pytest.mark.parametrize(("case", "executor", name), rows)


def texts(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=generator) for length in lengths]


def joined(*parts):
    return [torch.cat(rows) for rows in zip(*parts, strict=True)]


def padded(rows, side="right"):
    """Ids and mask; junk under the padding."""
    width = max(map(len, rows))
    ids = torch.randint(VOCAB, (len(rows), width), generator=torch.Generator().manual_seed(77))
    mask = torch.zeros_like(ids)
    for row, values in enumerate(rows):
        at = slice(0, len(values)) if side == "right" else slice(width - len(values), width)
        ids[row, at], mask[row, at] = values, 1
    return ids, mask


def feed(decoder, cache, rows, case, executor, sizes=None, side="right", keys=KEYS):
    """Logits and executed rows of these tokens, row after row."""
    ids, mask = padded(rows, side)
    given = None if bool(mask.all()) else mask
    logits, executed, start = [], [], 0
    for size in sizes or (ids.shape[1],):
        if start >= ids.shape[1]:
            break
        part = slice(start, start + size)
        output = run(
            decoder, ids[:, part], None if given is None else given[:, part], case, cache=cache,
            executor=executor, row_keys=keys,
        )  # fmt: skip
        logits.append(output.logits)
        executed.append(output.executed)
        start += size
    assert start >= ids.shape[1]
    return _flat(logits, mask), _flat(executed, mask)


def whole(decoder, rows, case, skip, keys=KEYS):
    """The same of one pass without a cache, the first `skip` tokens of each row left out."""
    ids, mask = padded(rows)
    output = run(decoder, ids, mask, case, row_keys=keys)
    wanted = mask.clone()
    for row, count in enumerate(skip):
        wanted[row, :count] = 0
    return _flat([output.logits], wanted), _flat([output.executed], wanted)


def _flat(parts, mask):
    values = torch.cat(parts, 1)
    return torch.cat([row[keep.bool()] for row, keep in zip(values, mask, strict=True)])


def same(ours, theirs):
    assert torch.equal(ours[1], theirs[1])
    close(ours[0], theirs[0])


@each
def test_several_turns_padded_on_either_side(case, executor):
    decoder, cache = build(case), None
    turns = texts(FIRST, 1), texts(THEN, 2), texts((1,) * 7, 3), texts((2, 0, 3, 1, 0, 4, 2), 4)
    cache, before = decoder.cache(), [torch.empty(0, dtype=torch.long)] * 7
    for turn, side in zip(turns, ("left", "right", "right", "left"), strict=True):
        skip = [len(row) for row in before]
        before = joined(before, turn)
        sizes = None if side == "right" else (2,) * 5
        got = feed(decoder, cache, turn, case, executor, sizes, side)
        same(got, whole(decoder, before, case, skip))
    assert cache.seen.tolist() == [len(row) for row in before]


@each_with("kept", [(1, 2, 5, 0, 0, 2, 1), (1, 3, 9, 6, 1, 1, 4)])
def test_rows_cropped_each_to_its_own_length_go_on(case, executor, kept):
    decoder = build(case)
    first, then = texts(FIRST, 1), texts(THEN, 2)
    cache = decoder.cache(rewind=12)
    feed(decoder, cache, first, case, executor, (5, 4))
    cache.crop(torch.tensor(kept))
    assert cache.seen.tolist() == list(kept)
    short = joined([row[:count] for row, count in zip(first, kept, strict=True)], then)
    same(
        feed(decoder, cache, then, case, executor, (1, 3, 1)),
        whole(decoder, short, case, kept),
    )


@each_with("length", [4, -1, 0, -6])
def test_one_length_for_all_rows(case, executor, length):
    decoder = build(case)
    first, then = texts((6,) * 7, 1), texts((4,) * 7, 2)
    cache = decoder.cache(rewind=6)
    feed(decoder, cache, first, case, executor, (4, 1, 1))
    cache.crop(length)
    kept = length if length >= 0 else 6 + length
    assert cache.uniform == kept
    short = joined([row[:kept] for row in first], then)
    got = feed(decoder, cache, then, case, executor, (1, 2, 1))
    same(got, whole(decoder, short, case, (kept,) * 7))


# The depths of `fixed` belong to the rows of the batch it was made for.
@each_with("rows", [(3, 0, 6, 2, 1, 5, 4), (2, 2, 0, 6, 6, 2), (5, 1)], but=("fixed",))
def test_rows_taken_in_another_order_go_on(case, executor, rows):
    decoder, order = build(case), torch.tensor(rows)
    first = texts(FIRST, 1)
    cache = decoder.cache(rewind=3)
    feed(decoder, cache, first, case, executor, (5, 4))
    cache.reorder(order)
    then = texts(THEN[: len(rows)], 2)
    mine = [first[row] for row in rows]
    skip = [FIRST[row] for row in rows]
    got = feed(decoder, cache, then, case, executor, (1, 4), keys=KEYS[order])
    same(got, whole(decoder, joined(mine, then), case, skip, KEYS[order]))
    cache.crop(-1)
    short = [row[:-1] for row in joined(mine, then)]
    last = texts((2,) * len(rows), 3)
    got = feed(decoder, cache, last, case, executor, (1, 1), keys=KEYS[order])
    same(got, whole(decoder, joined(short, last), case, [len(row) for row in short], KEYS[order]))


@each
def test_after_a_reset_it_is_as_new(case, executor):
    decoder = build(case)
    if case.policy == "fixed":
        decoder.policy = FixedExit(len(decoder.schedule.visits) - len(decoder.schedule.coda))
    cache = decoder.cache()
    feed(decoder, cache, texts(FIRST, 1), case, executor)
    cache.reset()
    assert (cache.nbytes, cache.seen, cache.memory, dict(cache.tracks)) == (0, None, None, {})
    for size, first, then in ((3, 4, 2), (7, 2, 3)):
        rows, more = texts((first,) * size, 5), texts((then,) * size, 6)
        feed(decoder, cache, rows, case, executor, keys=KEYS[:size])
        got = feed(decoder, cache, more, case, executor, keys=KEYS[:size])
        same(got, whole(decoder, joined(rows, more), case, (first,) * size, KEYS[:size]))
        cache.reset()


@each
def test_saved_and_loaded_it_goes_on_bit_by_bit(case, executor, tmp_path):
    decoder = build(case)
    cache = decoder.cache(rewind=6, room=9)
    feed(decoder, cache, texts(FIRST, 1), case, executor, (5, 4))
    cache.crop((cache.seen - 3).clamp_min(0))
    cache.save(tmp_path / "cache.safetensors")
    again = load_cache(tmp_path / "cache.safetensors")
    assert again.tracks.keys() == cache.tracks.keys()
    assert (again.rule, again.room, again.rewind) == (cache.rule, 9, 6)
    for turn in (texts(THEN, 2), texts((1,) * 7, 3)):
        ours = feed(decoder, again, turn, case, executor)
        theirs = feed(decoder, cache, turn, case, executor)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        again.crop(-1)
        cache.crop(-1)


def test_an_empty_cache_is_saved_cropped_and_reordered(tmp_path):
    decoder = llama()
    cache = decoder.cache(room=4)
    cache.crop(0)
    cache.reorder(torch.tensor([0, 0]))
    cache.save(tmp_path / "empty")
    again = load_cache(tmp_path / "empty")
    assert (again.seen, again.uniform, again.room) == (None, 0, 4)
    for wrong in (1, -1):
        with pytest.raises(ValueError, match="the cache is empty"):
            cache.crop(wrong)


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    save_model(llama(), tmp_path)
    with pytest.raises(ValueError, match="holds no cache"):
        load_cache(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds no cache"):
        load_cache(tmp_path / "model.json")


@torch.no_grad()
def test_a_crop_beyond_what_was_seen_is_refused_and_changes_nothing():
    decoder, cache = llama(), llama().cache()
    ids, mask = padded(texts((4, 2), 1))
    decoder(ids, mask, cache=cache)
    for wrong in (3, -3, torch.tensor([4, 3]), torch.tensor([0, -3])):
        with pytest.raises(ValueError, match=r"length: got .*; rows have seen \[4, 2\] tokens"):
            cache.crop(wrong)
    with pytest.raises(ValueError, match="length: got shape"):
        cache.crop(torch.tensor([1, 1, 1]))
    assert cache.seen.tolist() == [4, 2]
    for wrong in (torch.tensor([2]), torch.tensor([-1])):
        with pytest.raises(ValueError, match="rows: got"):
            cache.reorder(wrong)


def _held(cache):
    """Tokens in each store, row by row."""
    return {
        key: [(row[row >= 0]).tolist() for row in track.positions]
        for key, track in cache.tracks.items()
    }


@each
def test_every_token_that_ran_is_stored_exactly_once(case, executor):
    """Stores of different layers hold different tokens: what the decisions say, and no zeros.

    Blocks with a window may have given up what no later query of any row looks at.
    """
    decoder, cache = build(case), build(case).cache()
    logits, executed = feed(decoder, cache, texts(FIRST, 1), case, executor, (4, 1, 4))
    del logits
    ran = executed.split(FIRST)
    held = _held(cache)
    for visit, (span, block) in enumerate(decoder.schedule.visits):
        loop = decoder.schedule.spans[span].loop
        got = held.get(("run", block, 0 if case.rule == "carried" else loop), [[]] * 7)
        window = decoder.blocks[block].attention.config.window
        for row, length in enumerate(FIRST):
            own = ran[row][:, visit].nonzero().flatten().tolist()
            wanted = list(range(length)) if case.rule == "all" else own
            needed = [at for at in wanted if window is None or at > length - window]
            if case.rule == "carried":
                assert set(needed) <= set(got[row])
            elif window is None:
                assert sorted(got[row]) == wanted
            else:
                assert set(needed) <= set(got[row]) <= set(wanted)
                assert len(set(got[row])) == len(got[row])
    for store in cache.stores.values():
        there = store.track.positions >= 0
        assert (store.keys[there].abs().sum((-2, -1)) > 0).all()
        assert (store.values[~there] == 0).all()


@torch.no_grad()
def test_a_layer_that_nobody_has_run_is_no_trouble():
    decoder = llama("kept").double()
    decoder.policy = FixedExit(1)
    cache, ids = decoder.cache(), torch.stack(texts((6, 6), 1))
    decoder(ids, cache=cache, executor="gathered")
    assert [sum(map(len, held)) for held in _held(cache).values()] == [12]
    cache.crop(-1)
    cache.reorder(torch.tensor([1, 0]))
    then, deep = torch.stack(texts((3, 3), 2)), FixedExit(4)
    ours = [decoder(part, cache=cache, policy=deep).logits for part in then.split(1, dim=1)]
    depths = torch.tensor([1] * 5 + [4] * 3).expand(2, -1)
    rows = torch.cat((ids[[1, 0], :5], then), 1)
    close(torch.cat(ours, 1), decoder(rows, policy=FixedExit(depths)).logits[:, 5:])


@torch.no_grad()
def test_bytes_are_those_of_keys_and_values():
    decoder, row = llama(), 2 * 8 * 4  # two heads of eight floats
    cache = decoder.cache()
    decoder(torch.stack(texts((6,) * 3, 1)), cache=cache)
    assert cache.nbytes == 4 * 2 * 3 * 6 * row
    decoder(torch.stack(texts((1,) * 3, 2)), cache=cache)
    assert cache.nbytes == 4 * 2 * 3 * int(6 * GROWTH) * row
    roomy = decoder.cache(room=20)
    decoder(torch.stack(texts((6,) * 3, 1)), cache=roomy)
    places = set()
    for step in range(14):
        decoder(torch.stack(texts((1,) * 3, step)), cache=roomy)
        places.add(roomy.stores["run", 0, 0].parts[0].data_ptr())
        assert roomy.nbytes == 4 * 2 * 3 * 20 * row
    assert len(places) == 1


@torch.no_grad()
@pytest.mark.parametrize("count", [30, 120])
def test_growing_copies_a_logarithm_of_times(count):
    decoder = llama().double()
    cache, copies, before = decoder.cache(), 0, None
    for _ in range(count):
        decoder(torch.tensor([[1]]), cache=cache)
        now = cache.stores["run", 0, 0].parts
        copies += now is not before
        before = now
    assert copies <= 3 + torch.tensor(count).log().div(torch.tensor(GROWTH).log())


def _windowed(**fields):
    torch.manual_seed(0)
    config = {name: getattr(llama().config, name) for name in DecoderConfig.__slots__}
    made = Decoder(DecoderConfig(**{**config, "windows": (3, None, 5, 3), **fields}))
    return made.double().eval().requires_grad_(requires_grad=False)


@pytest.mark.parametrize("rewind", [0, 4])
def test_a_window_holds_what_it_sees_and_can_take_back(rewind):
    decoder = _windowed()
    cache, ids = decoder.cache(rewind=rewind), torch.stack(texts((30,) * 2, 1))
    for start in range(20):
        decoder(ids[:, start : start + 1], cache=cache)
        kept = start + 1
        for block, window in enumerate(decoder.config.windows):
            held = _held(cache)["run", block, 0]
            oldest = 0 if window is None else max(0, kept - window + 1 - rewind)
            assert held == [list(range(oldest, kept))] * 2
    if rewind == 0:
        with pytest.raises(ValueError, match="can take back 0 tokens"):
            cache.crop(-1)
    else:
        with pytest.raises(ValueError, match="can take back 4 tokens"):
            cache.crop(15)
    cache.crop(20 - rewind)
    then = torch.stack(texts((6,) * 2, 2))
    got = [decoder(part, cache=cache).logits for part in then.split([1, 3, 1, 1], dim=1)]
    rows = torch.cat((ids[:, : 20 - rewind], then), 1)
    close(torch.cat(got, 1), decoder(rows).logits[:, 20 - rewind :])


def test_windows_begin_again_after_a_crop_to_nothing():
    decoder = _windowed()
    cache = decoder.cache()
    decoder(torch.stack(texts((20,) * 2, 1)), cache=cache)
    cache.crop(0)
    rows = torch.stack(texts((9,) * 2, 2))
    got = [decoder(part, cache=cache).logits for part in rows.split([4, 1, 1, 3], dim=1)]
    close(torch.cat(got, 1), decoder(rows).logits)
    assert _held(cache)["run", 0, 0] == [[7, 8]] * 2


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_lies_beyond_the_filled_part_is_never_read(dtype):
    """In float32 decoding goes by the kernels for few rows, which read the whole buffers."""
    decoder = llama().to(dtype)
    cache, rows = decoder.cache(room=16), torch.stack(texts((12,) * 2, 1))
    decoder(rows[:, :5], cache=cache)
    decoder(rows[:, 5:8], cache=cache)
    cache.crop(6)
    for store in cache.stores.values():
        for part in store.parts:
            part[:, len(store.track) :] = torch.nan
    got = [decoder(part, cache=cache).logits for part in rows[:, 6:].split([1, 4, 1], dim=1)]
    whole_pass = decoder(rows).logits[:, 6:]
    close(torch.cat(got, 1), whole_pass, 1e-4 if dtype == torch.float32 else 1e-9)


@torch.no_grad()
@pytest.mark.parametrize("executor", ["dense", "gathered"])
@pytest.mark.parametrize("rule", ["all", "kept"])
def test_the_way_of_few_rows_goes_on_from_a_changed_cache(rule, executor, tmp_path):
    decoder = llama(rule)
    decoder.policy = FixedExit(torch.tensor([2, 4, 3]))
    first, then, last = texts((5, 2, 7), 1), texts((1, 1, 1), 2), texts((3, 1, 2), 3)
    ids, mask = padded(first, "left")
    cache = decoder.cache()
    decoder(ids, mask, cache=cache, executor=executor)
    decoder(torch.stack(then), cache=cache, executor=executor)
    cache.crop(torch.tensor([3, 2, 7]))
    cache.save(tmp_path / "cache")
    cache = load_cache(tmp_path / "cache")
    cache.reorder(torch.tensor([2, 0, 1]))
    decoder.policy = FixedExit(torch.tensor([3, 2, 4]))
    rows = [first[2], first[0][:3], first[1][:2]]
    for step in (then, last):
        ids, mask = padded(step)
        got = decoder(ids, mask, cache=cache, executor=executor).logits[mask.bool()]
        before = [len(row) for row in rows]
        rows = joined(rows, step)
        ids, mask = padded(rows)
        wanted = mask.clone()
        for row, count in enumerate(before):
            wanted[row, :count] = 0
        close(got, decoder(ids, mask).logits[wanted.bool()], 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("emptied", [Cache.reset, lambda cache: cache.crop(0)])
def test_a_cache_that_another_decoder_has_used_takes_no_weights_from_it(emptied):
    one, other = llama(), llama()
    for parameter in other.parameters():
        parameter.mul_(1.5)
    rows = torch.stack(texts((6,) * 2, 1))
    cache = one.cache()
    for part in rows.split([4, 1, 1], dim=1):
        one(part, cache=cache)
    emptied(cache)
    got = [other(part, cache=cache).logits for part in rows.split([4, 1, 1], dim=1)]
    close(torch.cat(got, 1), other(rows).logits, 1e-4)


@torch.no_grad()
def test_a_call_that_was_broken_off_is_undone_by_a_crop_to_what_was_seen():
    decoder = llama().double()
    cache, rows = decoder.cache(), torch.stack(texts((9,) * 2, 1))
    decoder(rows[:, :4], cache=cache)

    def stop(module, given, made):
        raise KeyboardInterrupt

    handle = decoder.blocks[2].feed_forward.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        decoder(rows[:, 4:6], cache=cache)
    handle.remove()
    cache.crop(cache.seen)
    close(decoder(rows[:, 4:], cache=cache).logits, decoder(rows).logits[:, 4:])


def test_a_gradient_goes_through_steps_whose_first_keys_need_none():
    """Queries alone are trained: what attention has kept for the gradient is not written over."""
    decoder = llama().double().requires_grad_(requires_grad=False)
    query = decoder.blocks[0].attention.query.weight.requires_grad_()
    rows = torch.stack(texts((6,) * 2, 1))
    decoder(rows).logits.square().sum().backward()
    wanted, query.grad = query.grad, None
    cache = decoder.cache()
    steps = [decoder(part, cache=cache).logits for part in rows.split(1, dim=1)]
    torch.cat(steps, 1).square().sum().backward()
    torch.testing.assert_close(query.grad, wanted)


def test_what_a_policy_remembers_decides():
    """Without its memory the same cache goes on with other decisions: the suite above sees it."""
    moved = []
    for case in (one for one in CAUSAL if one.policy == "tired"):
        decoder, cache = build(case), build(case).cache()
        feed(decoder, cache, texts(FIRST, 1), case, "gathered")
        assert cache.memory.positions.amax(1).tolist() == [length - 1 for length in FIRST]
        cache.memory = None
        _, executed = feed(decoder, cache, texts(THEN, 2), case, "gathered")
        rows = joined(texts(FIRST, 1), texts(THEN, 2))
        moved.append(not torch.equal(executed, whole(decoder, rows, case, FIRST)[1]))
    assert sum(moved) >= 3


def test_memory_that_shares_its_tensors_is_saved(tmp_path):
    cache = llama().cache()
    with torch.no_grad():
        llama()(torch.ones(2, 3, dtype=torch.long), cache=cache)
    positions = torch.arange(3).expand(2, 3)
    cache.memory = Memory(positions, {"same": positions, "other": positions[:, :, None]})
    cache.save(tmp_path / "cache")
    again = load_cache(tmp_path / "cache").memory
    assert torch.equal(again.positions, positions)
    assert again.values["other"].shape == (2, 3, 1)
