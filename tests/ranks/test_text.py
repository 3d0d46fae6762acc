"""Prose is read as bytes and cut into windows."""

import hashlib

import pytest
import torch

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import text, transformer


def test_reads_a_file_as_bytes(tmp_path):
    (tmp_path / "a.txt").write_text("bücher\n", encoding="utf-8")
    tokens = text.read(tmp_path / "a.txt")
    assert tokens.dtype == torch.uint8
    assert bytes(tokens.tolist()).decode() == "bücher\n"


def test_the_prose_is_frozen():
    """A new digest moves the printed losses of five pages: run them, and write the numbers again."""
    prose = bytes(text.read().tolist())
    assert hashlib.sha256(prose).hexdigest()[:16] == "b74a185f6430f21e"


def test_an_empty_file_names_the_way_out(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt is empty; pass a file of text"):
        text.read(tmp_path / "empty.txt")


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


def test_a_small_model_learns_from_real_text():
    tokens = text.read()
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
    assert sum(losses[-5:]) / 5 < 3.2


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "0 bytes; write whole ids"), (b"12345", "5 bytes"), (b"\xff" * 4, "the id -1; write ids from 0 on")],
)
def test_ids_of_a_tokenizer_are_whole_and_not_negative(tmp_path, data, message):
    path = tmp_path / "ids.i32"
    path.write_bytes(bytes([7, 1, 0, 0, 9, 0, 0, 0]))
    assert text.read_ids(path).tolist() == [263, 9]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        text.read_ids(path)
