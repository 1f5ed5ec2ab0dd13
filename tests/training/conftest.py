"""One thread, a text, and a way to train that ends after some steps."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def text(tmp_path):
    from tests.training.toys import TEXT

    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return str(file)
