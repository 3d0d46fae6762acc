"""The matrix of `nvidia-smi topo -m` is read cell by cell, or refused with the row and the column."""

import pytest

from shardlab.costs.facts import topology_text

HEADER = "GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity GPU NUMA ID"
ROWS = ("GPU0 X NV4 PIX 0-31 0 N/A", "GPU1 NV4 X NODE 0-31 0 N/A", "NIC0 PIX NODE X")


def read(*rows: str, header: str = HEADER) -> topology_text.Matrix:
    return topology_text.read("\n".join((header, *(rows or ROWS))))


PLAIN = read()


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (f"\x1b[4m\t{HEADER}\x1b[0m", ROWS),
        (f"\x1b[1;32m{HEADER}\x1b[K", ("", *ROWS, "", "Legend:", "  X    = Self")),
        ("$ nvidia-smi topo -m\n" + HEADER, (*ROWS, "NIC Legend:", "  NIC0: mlx5_0")),
        (HEADER.replace("GPU1 NIC0 CPU", "GPU1NIC0CPU"), ROWS),
        (HEADER, ("GPU0 XNV4PIX 0-31 0", "GPU1 NV4 XNODE0-31 0", "NIC0 PIXNODEX")),
        (HEADER, ("GPU0 X NV4PIX0-31 0", *ROWS[1:])),
        (HEADER, (ROWS[2], ROWS[0], ROWS[1])),
    ],
)
def test_what_is_meant_is_read(header: str, rows: tuple[str, ...]):
    matrix = read(*rows, header=header)
    assert (matrix.cells, matrix.processor) == (PLAIN.cells, PLAIN.processor)
    assert matrix.processor == {"GPU0": "0", "GPU1": "0"}


@pytest.mark.parametrize("card", ["mlx5_0", "mlx5_bond_0", "rdma0", "bnxt_re0", "irdma-ens1"])
def test_a_card_may_have_any_name(card: str):
    matrix = read(*(row.replace("NIC0", card) for row in ROWS), header=HEADER.replace("NIC0", card))
    assert (matrix.gpus, matrix.nearest_cards) == (["GPU0", "GPU1"], {"GPU0": [card], "GPU1": [card]})


def test_cards_whose_names_run_together_are_known_by_their_rows():
    rows = ("GPU0 X PIX SYS 0-7", "rdma1 PIX X SYS", "rdma10 SYS SYS X")
    matrix = read(*rows, header="GPU0 rdma1rdma10 CPU Affinity")
    assert matrix.nearest_cards == {"GPU0": ["rdma1"]}
    assert matrix.cells["rdma10", "rdma1"] == "SYS"


@pytest.mark.parametrize(
    ("rest", "processor"),
    [
        (("0-7 N/A", "8-15 N/A"), ("0-7", "8-15")),
        (("0-7 0-1", "0-7 2,3"), ("0-7", "0-7")),
        (("0-7 0", "8-15 N/A"), ("0-7", "8-15")),
        (("0-7 0 N/A", "8-15 1 N/A"), ("0", "1")),
        (("0-71 0 4", "72-143 1 12"), ("0", "1")),  # GPU NUMA IDs of a Grace Hopper
        (("N/A N/A", "N/A N/A"), (None, None)),
        (("", ""), (None, None)),
    ],
)
def test_cores_tell_the_processor_where_numa_does_not(rest: tuple[str, str], processor: tuple[str, str]):
    matrix = read(f"GPU0 X SYS {rest[0]}", f"GPU1 SYS X {rest[1]}", header="GPU0 GPU1 CPU Affinity")
    assert (matrix.processor.get("GPU0"), matrix.processor.get("GPU1")) == processor


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        ("", ("bash: nvidia-smi: command not found",), "no line begins with GPU0"),
        ("", ROWS, "first line that begins with a GPU has the cell X, and is no header"),
        (HEADER, ROWS[:2], "the header has 'NIC0', and no row begins with it"),
        (HEADER, (*ROWS, "GPU2 SYS SYS SYS X"), "the line 'GPU2 SYS SYS SYS X' is no row of the header"),
        (HEADER, (*ROWS, HEADER, *ROWS), "the line 'GPU0 GPU1 NIC0 .* is no row of the header"),
        (HEADER, (ROWS[0], "PIX 0-31 0", *ROWS[1:]), "the line 'PIX 0-31 0' is no row of the header"),
        ("GPU0 GPU1\nNIC0 CPU Affinity", ROWS, "the line 'NIC0 CPU Affinity' is no row of the header"),
        (HEADER, ("GPU0 X NV4 0-31 0", *ROWS[1:]), "row GPU0 has 2 cells for 3 columns"),
        (HEADER, ("GPU0 X NV4 PIX SYS 0-31", *ROWS[1:]), "row GPU0 has 4 cells for 3 columns"),
        (HEADER, ("GPU0 X NV4 PIC 0-31 0", *ROWS[1:]), "row GPU0, column NIC0: 'PIC' is unknown"),
        (HEADER, ("GPU0 X NV4 \0\x1b]0;x", *ROWS[1:]), r"column NIC0: '\\x00\\x1b]0;x' is unknown"),
        (HEADER, ("GPU0 X NV 4 PIX 0-31", *ROWS[1:]), "row GPU0, column GPU1: 'NV' is unknown"),
        ("GPU0 GPU1 CPU", ("GPU0 X NV120-31", "GPU1 NV12 X 0-31"), "column GPU1: 'NV120-31' is unknown"),
        (HEADER, ("GPU0 NV4 X PIX 0-31", *ROWS[1:]), "row GPU0, column GPU0: NV4, but X"),
        (HEADER, ("GPU0 X NV2 PIX 0-31", *ROWS[1:]), "row GPU0, column GPU1: NV2, but the other way round NV4"),
        ("GPU0 GPU0 CPU", ("GPU0 X X",), "the header has 'GPU0' twice"),
        ("GPU0 NIC0", ("GPU0 X NV4", "NIC0 NV4 X"), "row GPU0, column NIC0: NV4, but NVLinks join GPUs"),
        (" ".join(f"GPU{n}" for n in range(300)), (), "has 300 devices, and is no header"),
        ("GPU0 " + "NIC1" * 30_000 + "!", ("GPU0 X SYS",), "the header has 'NIC1NIC1"),
        ("GPU0 \x1b]0;x", ("GPU0 X PIC", "\x1b]0;x PIC X"), r"row GPU0, column \?]0;x: 'PIC' is unknown"),
    ],
)
def test_all_else_is_refused_with_its_place(header: str, rows: tuple[str, ...], said: str):
    with pytest.raises(ValueError, match=said) as caught:
        topology_text.read("\n".join((header, *rows)))
    assert "give all that `nvidia-smi topo -m > topo.txt` prints" in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("GPU0 GPU1\nGPU0 X GNS\nGPU1 GNS X", "nvidia-smi topo -p2p"),
        ("GPU0 GPU1\nGPU0 X OK\nGPU1 OK X", "nvidia-smi topo -p2p"),
        ("== ROCm System Management Interface ==\nGPU0 GPU1\nGPU0 0 15\nGPU1 15 0", "rocm-smi or amd-smi"),
        ("GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0", "rocm-smi or amd-smi"),
        ("GPU 0/0 GPU 1/0 CPU Affinity\nGPU 0/0 S XL8\nGPU 1/0 XL8 S", "xpu-smi topology -m"),
        ("NPU0 NPU1\nNPU0 X HCCS\nNPU1 HCCS X", "npu-smi info -t topo"),
    ],
)
def test_the_matrix_of_another_tool_is_known_as_such(text: str, tool: str):
    with pytest.raises(ValueError, match=f"`{tool}` wrote this"):
        topology_text.read(text)
