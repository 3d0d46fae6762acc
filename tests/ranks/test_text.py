"""Chapters are read as bytes and cut into windows."""

import argparse
import inspect

import pytest
import torch

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import text, transformer


@pytest.fixture
def book(tmp_path):
    for name in ("part", ".ipynb_checkpoints", "_build"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "copy.md").write_text("alpha")
    (tmp_path / "part" / "copy.md").unlink()
    (tmp_path / "b.md").write_text("bücher", encoding="utf-8")
    (tmp_path / "a.md").write_text("alpha")
    (tmp_path / "part" / "c.md").write_text("gamma")
    (tmp_path / "notes.txt").write_text("not a chapter")
    return tmp_path


def test_reads_chapters_in_order_as_bytes(book):
    tokens = text.read(book)
    assert tokens.dtype == torch.uint8
    assert bytes(tokens.tolist()).decode() == "alpha\nbücher\ngamma"


def test_a_folder_without_text_names_the_way_out(tmp_path):
    (tmp_path / "notes.txt").write_text("not a chapter")
    with pytest.raises(ValueError, match=r"holds 0 \.md files and no text; pass a folder of chapters"):
        text.read(tmp_path)


def test_windows_lie_side_by_side_and_targets_are_one_later():
    tokens = torch.arange(17, dtype=torch.uint8)
    before = tokens.clone()
    assert text.num_samples(tokens, 4) == 4
    inputs, targets = text.batch(tokens, torch.tensor([3, 0, 3]), 4)
    assert inputs.tolist() == [[12, 13, 14, 15], [0, 1, 2, 3], [12, 13, 14, 15]]
    assert torch.equal(targets, inputs + 1)
    assert inputs.dtype == targets.dtype == torch.int64
    inputs.zero_()
    assert torch.equal(tokens, before)


def test_a_last_window_without_its_next_token_is_not_dealt():
    tokens = torch.arange(16, dtype=torch.uint8)
    assert text.num_samples(tokens, 4) == 3
    with pytest.raises(ValueError, match="indices from 0 to 3, but the text has 3 samples of 4 tokens; use 0 to 2"):
        text.batch(tokens, torch.tensor([0, 3]), 4)
    with pytest.raises(ValueError, match="indices from -1 to 0"):
        text.batch(tokens, torch.tensor([-1, 0]), 4)


@pytest.mark.parametrize("length", [0, 16, 17])
def test_a_length_that_does_not_fit_names_the_way_out(length):
    tokens = torch.arange(16, dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"length={length} does not fit a text of 16 tokens; use 1 to 15"):
        text.num_samples(tokens, length)


def test_a_small_model_learns_from_real_text(tmp_path):
    (tmp_path / "chapter.md").write_text(inspect.getsource(argparse))
    tokens = text.read(tmp_path)
    torch.manual_seed(0)
    model = transformer.Transformer(
        TransformerSpec(vocab_size=256, context_length=32, hidden_size=32, num_layers=1, num_heads=2)
    )
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for indices in torch.randperm(text.num_samples(tokens, 32)).split(16)[:120]:
        loss = model(*text.batch(tokens, indices, 32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(5.55, abs=0.2)  # ln 256: every byte equally likely
    assert sum(losses[-5:]) / 5 < 3.0
