"""The library of safetensors reads what we write, of every dtype, and we read what it writes."""

import os
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from shardlab.ranks.checkpoint import tensors

SHAPES = [(), (1,), (7,), (3, 5), (0, 2), (2, 1, 3)]


def some(dtype):
    """Make tensors of a dtype from random bytes, one of them not contiguous."""
    made = {}
    for number, shape in enumerate(SHAPES):
        count = torch.Size(shape).numel() * dtype.itemsize
        numbers = torch.randint(2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
        made[f"{dtype} {number}"] = numbers.view(dtype).view(shape)
    made[f"{dtype} turned"] = made[f"{dtype} 3"].T
    return made


EVERY = {name: tensor for dtype in tensors.DTYPES.values() for name, tensor in some(dtype).items()}


def assert_same(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert bytes(tensors.as_bytes(one)) == bytes(tensors.as_bytes(other))


def test_the_library_reads_what_we_write(tmp_path):
    tensors.write(tmp_path / "x", EVERY)
    read = load_file(tmp_path / "x")
    assert read.keys() == EVERY.keys()
    for name, tensor in EVERY.items():
        assert_same(read[name], tensor)


def test_we_read_what_we_and_the_library_write(tmp_path):
    tensors.write(tmp_path / "ours", EVERY)
    save_file({name: tensor.contiguous() for name, tensor in EVERY.items()}, tmp_path / "theirs")
    for file in ("ours", "theirs"):
        for tensor, read in zip(EVERY.values(), tensors.read(tmp_path / file, EVERY), strict=True):
            assert_same(read, tensor)


def test_each_tensor_begins_at_a_multiple_of_its_width_and_all_may_read_it(tmp_path):
    """The library maps files to memory, where numbers of 8 bytes want to be at such addresses."""
    before = os.umask(0o022)
    tensors.write(tmp_path / "x", {"a": torch.zeros(1, dtype=torch.uint8), "b": torch.zeros(1, dtype=torch.float64)})
    os.umask(before)
    numbers = (tmp_path / "x").read_bytes()
    assert numbers.index(b'"b"') < numbers.index(b'"a"')
    assert (len(numbers) - 9) % 8 == 0
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o644


@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_flipped_bit_changes_the_checksum(numbers, data):
    tensor = torch.frombuffer(bytearray(numbers), dtype=torch.uint8)
    before = tensors.checksum(tensor)
    tensor[data.draw(st.integers(0, len(numbers) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert tensors.checksum(tensor) != before


def test_what_cannot_be_written_or_read_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match=r"x is of torch.complex128; convert it to one of torch.float64, "):
        tensors.write(tmp_path / "x", {"x": torch.zeros(1, dtype=torch.complex128)})
    tensors.write(tmp_path / "x", {"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="does not contain tensor y"):
        [*tensors.read(tmp_path / "x", ["y"])]
    (tmp_path / "x").write_bytes(b"no file of tensors")
    with pytest.raises(ValueError, match="header"):
        [*tensors.read(tmp_path / "x", ["x"])]
    with pytest.raises(FileNotFoundError):
        [*tensors.read(tmp_path / "nowhere", ["x"])]
