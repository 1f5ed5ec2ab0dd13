"""Training with a random number of loops: the draw, what carries gradients, and resuming."""

import dataclasses

import pytest
import torch

from tests.training.test_resume import losses, same, stop_after, tensors
from tests.training.toys import tiny
from tokendepth.models.schedule import looped, with_loops
from tokendepth.training.loops import RandomLoops
from tokendepth.training.objective import Batch, TrainState
from tokendepth.training.track import read_metrics
from tokendepth.training.train import resume, train


def recurrent(**changes):
    """A step takes milliseconds; the number of loops is drawn, and so is the looped state."""
    base = tiny()
    decoder = dataclasses.replace(
        base.decoder, adapter=True, bare_post_norms=(1,), key_value_rule="carried"
    )
    order = looped(prelude=1, core=1, coda=1, loops=3, start="truncated", normed_coda=True)
    objective = RandomLoops(mean=3.0, most=6, learned=2)
    given = {"recipe": "recurrent", "decoder": decoder, "schedule": order, "objective": objective}
    return tiny(**(given | changes))


def test_the_mean_is_that_of_the_recipe():
    generator = torch.Generator().manual_seed(0)
    draws = torch.tensor([RandomLoops().draw(generator) for _ in range(30_000)]).double()
    # Exactly 8 but for the cut at 32; a Poisson of a log-normal has mean + mean^2 (e^(s^2) - 1).
    assert 7.8 <= draws.mean() <= 8.2
    assert abs(float(draws.var()) - (7 + 49 * 0.284)) < 1.5
    assert (draws.min(), draws.max()) == (1, 32)
    none = RandomLoops(mean=5.0, spread=0.0)
    draws = torch.tensor([none.draw(generator) for _ in range(10_000)]).double()
    assert abs(draws.mean() - 5) < 0.1
    assert abs(draws.var() - 4) < 0.3


def test_steps_draw_and_micro_batches_share():
    generator = torch.Generator()

    def at(step, micro=0, seed=0):
        state = TrainState(
            step=step, steps=9, micro=micro, tokens=1, seed=seed, generator=generator
        )
        return RandomLoops().draw(state.shared())

    by_step = [at(step) for step in range(3000)]
    assert by_step == [at(step, micro=1) for step in range(3000)]
    assert by_step != [at(step, seed=1) for step in range(3000)]
    assert 7.6 < sum(by_step) / 3000 < 8.4


def test_the_loss_is_of_the_drawn_number_of_loops():
    recipe = recurrent()
    decoder = recipe.initial.build(
        dataclasses.replace(
            recipe, decoder=dataclasses.replace(recipe.decoder, vocab_size=9, dropout=0.0)
        ).model,
        0,
    )
    ids = torch.arange(12).view(2, 6) % 9
    batch = Batch(inputs=ids, targets=ids, valid=ids >= 0, row_keys=torch.tensor([4, 7]))
    seen = set()
    for step in range(6):
        state = TrainState(
            step=step, steps=6, micro=0, tokens=12, seed=0, generator=torch.Generator()
        )
        told = recipe.objective(decoder, batch, state)
        loops = int(told.statistics["loops"]) // 12
        order = with_loops(recipe.schedule, loops)
        logits = decoder(ids, schedule=order, row_keys=batch.row_keys).logits
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids.flatten(), reduction="sum"
        )
        torch.testing.assert_close(told.sums["cross_entropy"], expected)
        seen.add(loops)
    assert len(seen) > 2


def test_stopped_and_resumed_is_the_unbroken_run(text, tmp_path):
    recipe = recurrent(accumulate=2)
    train(recipe, text, tmp_path / "whole")
    train(recipe, text, tmp_path / "broken", options=stop_after(4))
    resume(tmp_path / "broken")
    assert same(tensors(tmp_path / "broken"), tensors(tmp_path / "whole"))
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    rows = [row["loops"] for row in read_metrics(tmp_path / "whole") if "loops" in row]
    assert len(set(rows)) > 2
    assert all(row == int(row) for row in rows)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mean": 1.0}, "mean: got 1.0; it must be above 1"),
        ({"spread": -0.1}, "spread: got -0.1"),
        ({"most": 0}, "most: got 0"),
        ({"learned": 0}, "learned: got 0"),
    ],
)
def test_wrong_settings_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        RandomLoops(**wrong)


def test_a_plain_stack_cannot_be_looped(text, tmp_path):
    with pytest.raises(ValueError, match="no core that runs again and again"):
        train(tiny(objective=RandomLoops()), text, tmp_path / "run")
