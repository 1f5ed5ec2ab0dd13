"""Clouds, camera, and the protocol on tiny models: counts, resuming, refusals, what is told."""

import json

import numpy as np
import pytest
import torch

from tokendepth.measure import clouds as clouds_module
from tokendepth.measure import transport as module
from tokendepth.measure.camera import CAMERAS, make_camera
from tokendepth.measure.capture import capture
from tokendepth.measure.clouds import capture_clouds
from tokendepth.measure.transport import TransportInterrupted, TransportOptions, transport
from tokendepth.text.documents import tokenize_all, windows

TEXT = "The question is: that the thing is done? To be, or not to be, of that he is king.\n"
SMALL = {"n": 8, "seeds": 2, "sliced": 20, "directions": 4, "window": 32, "batch": 2}


@pytest.fixture(scope="module")
def texts():
    words = TEXT.split()
    random = np.random.default_rng(0)
    return [" ".join(random.permutation(words * 3)) for _ in range(2)]


@pytest.fixture
def cut(llama, texts):
    return list(windows(tokenize_all(texts, llama.tokenizer), 32))


def by_hand(llama, cut, layer):
    """Sums and counts a token type, one window at a time."""
    sums, counts = {}, {}
    for window in cut:
        states = capture(llama.view, torch.tensor([window.ids]))[layer][0].double()
        for position in range(1, len(window.ids)):
            token = window.ids[position]
            sums[token] = sums.get(token, 0) + states[position]
            counts[token] = counts.get(token, 0) + 1
    return sums, counts


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layer", [0, 2, 4])
def test_mean_flow_is_the_mean_over_occurrences(llama, cut, batch, layer):
    clouds = capture_clouds(llama.view, cut, max_points=10**6, batch=batch)
    sums, counts = by_hand(llama, cut, layer)
    types = sorted(counts)
    assert clouds.num_types == len(types) == len(clouds.states[layer])
    assert clouds.occurrences.tolist() == [counts[each] for each in types]
    assert clouds.num_positions == sum(counts.values()) == sum(len(w.ids) - 1 for w in cut)
    expected = torch.stack([sums[each] / counts[each] for each in types]).float()
    torch.testing.assert_close(clouds.states[layer], expected)


@pytest.mark.parametrize("few", [0, 1, 8])
def test_sums_of_many_terms_and_of_few_give_the_same_means(llama, cut, few, monkeypatch):
    whole = capture_clouds(llama.view, cut, max_points=10**6)
    assert whole.occurrences.min() <= clouds_module.FEW < whole.occurrences.max()
    monkeypatch.setattr(clouds_module, "FEW", few)
    split = capture_clouds(llama.view, cut, max_points=10**6)
    for layer in (0, 4):
        torch.testing.assert_close(split.states[layer], whole.states[layer])


def test_the_exit_through_the_final_norm(llama, texts, cut):
    clouds = capture_clouds(llama.view, cut, max_points=10**6, final_norm=True)
    plain = capture_clouds(llama.view, cut, max_points=10**6)
    assert plain.normed is None
    assert len(clouds.states) == len(plain.states)
    total = torch.zeros(clouds.normed.shape[1], dtype=torch.float64)
    for window in cut:
        last = capture(llama.view, torch.tensor([window.ids]))[4][0, 1:]
        total += llama.model.model.norm(last).detach().double().sum(dim=0)
    found = (clouds.normed.double() * clouds.occurrences[:, None]).sum(dim=0)
    torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-4)
    result = transport(texts, llama, final_norm=True, **SMALL)
    assert [each.name for each in result.transitions][3:] == ["3-4", "3-4 normed"]
    assert len(result.steps) == 4
    normed, before = result.transitions[4], result.transitions[3]
    assert (normed.final_norm, normed.source, normed.target) == (True, 3, 4)
    assert normed.a != before.a
    # The camera is made of what lies before the norm, so the other rows stay what they were.
    assert result.transitions[:4] == transport(texts, llama, **SMALL).transitions


def test_the_exit_is_kept_and_found_again(llama, texts, tmp_path, monkeypatch):
    first = transport(texts, llama, final_norm=True, resume=tmp_path, **SMALL)
    kept = tmp_path / "transitions.jsonl"
    older = json.loads(kept.read_text().splitlines()[0])
    del older["ebar_error"]
    kept.write_text(json.dumps(older) + "\n" + kept.read_text())
    monkeypatch.setattr(module, "measure_transition", None)
    again = transport(texts, llama, final_norm=True, resume=tmp_path, **SMALL)
    assert again.transitions == first.transitions


def test_raw_clouds_hold_single_states(llama, cut):
    clouds = capture_clouds(llama.view, cut, kind="raw", max_points=10**6)
    assert len(clouds.states[1]) == clouds.num_positions
    assert set(clouds.occurrences.tolist()) == {1}
    total = sum(capture(llama.view, torch.tensor([w.ids]))[1][0, 1:].double().sum(0) for w in cut)
    torch.testing.assert_close(clouds.states[1].double().sum(0), total, rtol=1e-5, atol=1e-4)


def test_points_are_bounded_and_the_same_at_every_layer(llama, cut):
    everything = capture_clouds(llama.view, cut, max_points=10**6)
    some = capture_clouds(llama.view, cut, max_points=9, seed=1)
    for layer in (0, 3):
        assert len(some.states[layer]) == 9
        distances = torch.cdist(some.states[layer].double(), everything.states[layer].double())
        nearest = distances.argmin(dim=1)
        if layer == 0:
            chosen = nearest
        assert (nearest == chosen).all()
        assert distances.min(dim=1).values.max() < 1e-5


def test_the_balanced_camera_gives_every_layer_the_same_weight():
    random = torch.Generator().manual_seed(0)
    small = torch.randn(500, 6, generator=random) * torch.tensor([3.0, 1, 0, 0, 0, 0])
    large = 100 * torch.randn(500, 6, generator=random) * torch.tensor([0, 0, 3.0, 1, 0, 0])
    balanced = make_camera("balanced", 2, [small, large + 7])
    unscaled = make_camera("unscaled", 2, [small, large + 7])
    assert balanced.basis[[0, 2]].norm() == pytest.approx(2**0.5, abs=1e-2)
    assert unscaled.basis[[2, 3]].norm() == pytest.approx(2**0.5, abs=1e-2)
    assert balanced.explained == pytest.approx(0.9, abs=0.02)
    assert balanced.basis.T @ balanced.basis == pytest.approx(torch.eye(2).double(), abs=1e-12)
    full = make_camera("full", 2, [small, large])
    assert torch.equal(full.see(small), small.double())


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_whole_measurement(llama, texts, camera):
    told = []
    result = transport(
        texts, llama, camera=camera, blocks=("0-4",), on_progress=lambda *args: told.append(args),
        **SMALL,
    )  # fmt: skip
    assert [(t.source, t.target) for t in result.transitions] == [
        (0, 1), (1, 2), (2, 3), (3, 4), (0, 4),
    ]  # fmt: skip
    assert result.complete
    assert told[-1] == ("transitions", 5, 5)
    assert max(done for stage, done, _ in told if stage == "tokens") == next(
        total for stage, _, total in told if stage == "tokens"
    )
    assert all(t.gap < 1e-12 for t in result.transitions)
    row = json.loads(json.dumps(result.summary(), allow_nan=False))["transitions"][0]
    for key in (
        "layer", "a_over_p", "e", "ebar", "ebar_calibration", "floor_over_p", "sliced", "rho",
        "rho_null", "cosine", "gaussian_r2", "resolvable",
    ):  # fmt: skip
        assert key in row
    assert json.loads(result.to_json())["transitions"][4]["source"] == 0
    assert "0-1" in result.page()
    assert len(result.plot().axes) == 3
    assert result.table().row_count == 5


def test_it_goes_on_where_it_was_interrupted(llama, texts, tmp_path, monkeypatch):
    whole = transport(texts, llama, **SMALL)
    real, calls = module.measure_transition, []

    def third_is_interrupted(*args, **options):
        calls.append(options["layers"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(module, "measure_transition", third_is_interrupted)
    with pytest.raises(TransportInterrupted) as caught:
        transport(texts, llama, resume=tmp_path, **SMALL)
    assert len(caught.value.result.transitions) == 2
    assert not caught.value.result.complete

    def not_again(*args, **options):
        raise AssertionError("the model ran again")

    monkeypatch.setattr(module, "see", not_again)
    result = transport(texts, llama, resume=tmp_path, **SMALL)
    assert calls[3:] == [(2, 3), (3, 4)]
    assert result.transitions == whole.transitions


def test_another_measurement_does_not_take_over_what_is_kept(llama, texts, tmp_path):
    first = transport(texts, llama, resume=tmp_path, **SMALL)
    other = transport(texts[:1], llama, resume=tmp_path, **SMALL)
    assert first.transitions != other.transitions
    (tmp_path / "transitions.jsonl").write_text('{"fingerprint": "torn')
    (tmp_path / "clouds.safetensors").write_bytes(b"torn")
    assert transport(texts[:1], llama, resume=tmp_path, **SMALL).transitions == other.transitions


def test_the_model_is_left_as_it_was(llama, texts):
    before = {name: value.clone() for name, value in llama.model.state_dict().items()}
    random = torch.random.get_rng_state()
    transport(texts, llama, **SMALL)
    assert torch.equal(torch.random.get_rng_state(), random)
    after = llama.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": "mean"}, "points: got 'mean'; allowed are mean_flow, raw"),
        ({"camera": "pca"}, "camera: got 'pca'"),
        ({"n": 1}, "n: got 1; it must be at least 2"),
        ({"seeds": 0}, "seeds: got 0"),
        ({"memory_gb": 0.0}, "memory_gb: got 0.0"),
    ],
)
def test_options_out_of_range(options, message):
    given = TransportOptions()
    for name, value in options.items():  # past the shape checks of these tests
        object.__setattr__(given, name, value)
    with pytest.raises(ValueError, match=message):
        given.check()


@pytest.mark.parametrize("block", ["3", "4-2", "0-9", "a-b"])
def test_blocks_that_are_none(block):
    with pytest.raises(ValueError, match="blocks: got"):
        TransportOptions(blocks=(block,)).pairs(4)


def test_too_little_text(llama):
    with pytest.raises(ValueError, match="three samples need at least 6"):
        transport("To be", llama, seeds=1)
    with pytest.raises(ValueError, match="n: got 500, which takes 1500 points"):
        transport(TEXT, llama, n=500, seeds=1)
