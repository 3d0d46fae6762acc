"""The command answers for a reader's own model and cluster, and refuses bad input in one line with the way out."""

import json
import os
import re
import shlex
import subprocess
import sys
import time

import pytest

from shardlab.costs import step
from shardlab.costs.facts import hugging_face, machines
from shardlab.costs.planning import planner, plans, robust
from shardlab.explorers.planner import ModelOnGpus
from shardlab.files import described
from shardlab.plan import amounts
from shardlab.plan.__main__ import main
from shardlab.plan.arguments import parser, request
from tests.costs.facts.test_hugging_face import DEEPSEEK, DENSE, LLAMA, MIXTRAL, QWEN3_MOE

SMALL = {**LLAMA, "num_hidden_layers": 4, "max_position_embeddings": 4096}
OURS = """
chip = "H100 SXM 80 GB"
gpus = 8
nvlink = 450
cards = 8
network = 400
nodes = 2
dollars_per_gpu_hour = 3
"""
COMMAND = ["--gpus", "16", "--node", "DGX H100", "--batch-tokens", "512K"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "ours.toml").write_text(OURS)
    return tmp_path


@pytest.fixture
def ask(folder, capsys):
    """Run the command on a file of the folder; return its status, its output and its errors."""

    def run(*words, config="config.json"):
        try:
            status = main([str(folder / config), *map(str, words)])
        except SystemExit as stopped:
            status = stopped.code
        return status, *capsys.readouterr()

    return run


def test_a_model_under_another_name_has_the_plans_of_the_one_that_it_is_like(ask, folder):
    (folder / "nova.json").write_text(json.dumps({**SMALL, "architectures": ["NovaForCausalLM"]}))
    nova = ask(*COMMAND, "--json", "--like", "LlamaForCausalLM", config="nova.json")
    assert nova == ask(*COMMAND, "--json")


def test_the_answer_is_the_planners(ask, folder):
    status, out, _ = ask(*COMMAND, "--json", "--tokens", "1B")
    answer = json.loads(out)
    question = request(parser().parse_args([str(folder), *COMMAND])).question
    found = planner.search(question)
    ranked = robust.rank(found)[:5]
    best = step.step(plans.run_of(question, ranked[0].plan))
    first = answer["plans"][0]
    assert status == 0
    assert answer["plans_tried"] == found.count
    assert [plan["name"] for plan in answer["plans"]] == [each.plan.name for each in ranked]
    assert [plan["behind"] for plan in answer["plans"]] == [each.behind for each in ranked]
    assert first["step_seconds"] == pytest.approx(best.seconds)
    assert first["parts"] == pytest.approx(best.summary)
    assert first["days"] == pytest.approx(best.days(1e9))
    assert first["dollars"] == pytest.approx(16 * best.days(1e9) * 24 * machines.RENT)
    assert first["megawatt_hours"] == pytest.approx(16 * best.days(1e9) * 24 * 700 / 1e6)
    assert answer["failures"].keys() == found.reasons.keys()
    assert answer["options"].keys() == {"torchtitan", "Megatron-LM", "DeepSpeed"}


def test_the_command_and_the_explorer_give_one_answer(ask, folder):
    """Both read the recipe and the headroom of `Question`."""
    words = ["--gpus", "512", "--node", "DGX H100", "--batch-tokens", "4M", "--sequence", "8K"]
    (folder / "config.json").write_text(json.dumps(LLAMA))
    found = planner.search(request(parser().parse_args([str(folder), *words])).question)
    best = ModelOnGpus("Llama 3 8B", 512).search(80).best
    assert (best.name, best.seconds) == (found.best.name, pytest.approx(found.best.seconds))


def test_the_text_has_what_the_data_has(ask):
    _, out, _ = ask(*COMMAND, "--json", "--plan", "2", "--show", "3")
    answer = json.loads(out)
    status, text, errors = ask(*COMMAND, "--plan", "2", "--show", "3")
    assert (status, errors) == (0, "")
    assert f"{answer['model']['parameters']:,} parameters" in text
    assert f"{answer['plans_tried']:,} plans were tried, and {answer['plans_that_fit']:,} fit" in text
    for number, plan in enumerate(answer["plans"], 1):
        assert re.search(rf"^{number} .* {plan['tokens_per_second']:,.0f} .*{re.escape(plan['name'])}$", text, re.M)
    assert len(answer["plans"]) == 3
    assert f"--tensor-model-parallel-size {answer['plans'][1]['tp']} " in text
    assert all(option in text for option in ("--tokens", "--price", "--watts", "--overhead"))


@pytest.mark.parametrize("words", [[], ["--ignore-unknown"]])
def test_the_experts_of_the_file_are_counted_under_the_name_of_transformers_5(ask, folder, words):
    file = {**QWEN3_MOE, "num_hidden_layers": 4, "num_local_experts": 64}
    del file["num_experts"]
    (folder / "own.json").write_text(json.dumps(file))
    _, out, _ = ask(*COMMAND, "--sequence", "4096", "--json", *words, config="own.json")
    expected = hugging_face.read({**QWEN3_MOE, "num_hidden_layers": 4, "num_experts": 64}).num_parameters
    assert json.loads(out)["model"]["parameters"] == expected


def test_a_count_that_is_in_doubt_is_called_so_beside_it(ask, folder):
    (folder / "own.json").write_text(json.dumps({**SMALL, "num_registers": 4, "fused": True}))
    words = [*COMMAND, "--ignore-unknown", "--ignore-size", "num_registers"]
    _, text, _ = ask(*words, config="own.json")
    assert text.splitlines()[1] == "WRONG COUNT if one of these changes a size: fused=True, num_registers=4"
    _, out, _ = ask(*words, "--json", config="own.json")
    assert json.loads(out)["model"]["ignored"] == ["fused=True", "num_registers=4"]


@pytest.mark.parametrize(("name", "config", "parameters"), DENSE, ids=[name for name, *_ in DENSE])
def test_every_dense_model_is_planned(ask, folder, name, config, parameters):
    (folder / "own.json").write_text(json.dumps(config))
    status, out, _ = ask("--gpus", 64, "--node", "DGX H100", "--batch-tokens", "1M", "--sequence", "1K", "--json",
                         "--zero", "1,3", config="own.json")  # fmt: skip
    answer = json.loads(out)
    assert status == 0
    assert answer["model"]["parameters"] == parameters
    assert answer["tokens"] == 20 * parameters


def test_a_cluster_in_toml_is_priced(ask, folder):
    status, out, _ = ask("--cluster", folder / "ours.toml", "--batch-tokens", "512K", "--json", "--overhead", "1.2")
    answer = json.loads(out)
    assert status == 0
    assert (answer["gpus"], answer["dollars_per_gpu_hour"], answer["overhead"]) == (16, 3, 1.2)


def test_the_example_of_the_help_is_a_cluster(ask, folder):
    status, out, _ = ask("--help")
    lines = [line.partition("#")[0].strip() for line in out.splitlines() if re.match(r"    \w+ = ", line)]
    (folder / "example.toml").write_text("\n".join(lines))
    assert status == 0
    assert len(lines) == 9
    assert machines.read(described.read_toml(str(folder / "example.toml"))).cluster.gpus == 64


def test_where_nothing_fits_the_nearest_plan_is_named(ask, folder):
    (folder / "config.json").write_text(json.dumps({**SMALL, "num_hidden_layers": 32}))
    status, out, _ = ask("--gpus", 2, "--node", "Two RTX 4090", "--batch-tokens", "64K", "--sequence", "4K")
    assert status == 1
    assert "Nothing fits. The nearest plan: " in out
    assert "too little memory" in out
    status, out, _ = ask("--gpus", 2, "--node", "Two RTX 4090", "--batch-tokens", "64K", "--json")
    assert status == 1
    assert json.loads(out)["plans"] == []
    assert " too much" in json.loads(out)["nearest"]


def test_a_plan_that_is_not_there_has_no_options(ask):
    gpus = "--gpus", 2, "--node", "Two RTX 4090", "--headroom", 0
    status, out, errors = ask(*gpus, "--batch-tokens", "64K", "--plan", 5)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"--plan 5 is not there: [1-4] plans of different degrees fit; use 1 to [1-4]\n", errors)


def test_a_longer_sequence_is_noted_where_positions_are_rotary(ask):
    _, out, _ = ask(*COMMAND, "--sequence", "8K")
    assert "Note: the sequence is longer than the file's context of 4,096" in out


BAD = [  # what is given, and what the one line says
    ([], {}, "the following arguments are required: --batch-tokens.*--help"),
    (["--batch-tokens", "4M"], {}, "one of the arguments --node --cluster is required"),
    ([*COMMAND, "--cluster", "ours.toml"], {}, "not allowed with argument"),
    ([*COMMAND, "--nodes", "3"], {}, "unrecognized arguments: --nodes 3"),
    ([*COMMAND, "--gpus", "many"], {}, "--gpus: invalid int value: 'many'"),
    ([*COMMAND, "--gpus", "60"], {}, "gpus=60 do not fill nodes of 8 GPUs .* use 56 or 64"),
    ([*COMMAND, "--gpus", "0"], {}, "--gpus 0 must be at least 1"),
    (COMMAND[2:], {}, "the number of GPUs is not given; add --gpus 64"),
    ([*COMMAND, "--node", "DGX H900"], {}, "no facts about the node 'DGX H900'; the nearest: DGX H200; DGX H100"),
    ([*COMMAND, "--batch-tokens", "4 M"], {}, "'4 M' is not an amount; write a number such as 4M, with one of K, M"),
    ([*COMMAND, "--batch-tokens", "4000000"], {}, "is not a whole number of sequences .* use 3997696 or 4001792"),
    ([*COMMAND, "--batch-tokens", "0"], {}, "'0' is not an amount; write a number from 1 to"),
    ([*COMMAND, "--sequence", "-1"], {}, "'-1' is not an amount"),
    ([*COMMAND, "--tokens", "15 trillion"], {}, "'15 trillion' is not an amount; .* K, M, B, T"),
    ([*COMMAND, "--recipe", "mixed"], {}, "no facts about the recipe 'mixed'; .*known: fp32 Adam"),
    ([*COMMAND, "--program", "mine"], {}, "no program is called 'mine'; use one of the Trainer of this book; "),
    ([*COMMAND, "--precision", "fp4"], {}, "H100 SXM 80 GB has no fp4; use"),
    ([*COMMAND, "--zero", "4"], {}, r"zero=\(4,\) must be some of 0, 1, 2, 3"),
    ([*COMMAND, "--zero", "all"], {}, "--zero 'all' must be numbers such as 0,1"),
    ([*COMMAND, "--headroom", "1.5"], {}, "headroom=1.5 must be a share of the memory"),
    ([*COMMAND, "--price", "-2"], {}, "dollars_per_gpu_hour=-2.0 must be a number above 0"),
    ([*COMMAND, "--price", "nan"], {}, "dollars_per_gpu_hour=nan must be a number above 0"),
    ([*COMMAND, "--overhead", "0.5"], {}, "overhead=0.5 must be at least 1"),
    ([*COMMAND, "--plan", "6"], {}, "--plan 6 must be one of the 1 to 5 plans"),
    (COMMAND, {"config": "missing.json"}, "missing.json cannot be read: No such file or directory; give the config"),
    (COMMAND, {"text": "{"}, "own.json is not valid JSON: Expecting property name.* give the config.json of a model"),
    (COMMAND, {"text": "[1]"}, "own.json holds no object with names and values"),
    (COMMAND, {"text": "[" * 100_000}, "own.json is not valid JSON"),
    (COMMAND, {"text": "{}"}, "the file has no architectures"),
    (COMMAND, {"text": json.dumps({**SMALL, "architectures": ["T5Model"]})}, "'T5Model'.* is not understood; use one"),
    (COMMAND, {"text": json.dumps({**SMALL, "num_experts": 8})}, "num_experts=8 is not understood; with this arch"),
    ([*COMMAND, "--batch-tokens", "9" * 20], {}, "'9{20}' is not an amount; write a number from 1 to 10,000,000,000"),
    ([*COMMAND, "--tokens", "9" * 400], {}, "is not an amount; write a number from 1 to 1,000,000,000,000,000,000"),
    ([*COMMAND, "--gpus", "9" * 400], {}, r"gpus of all nodes=9{8}\.\.\.9{8} must be a number from 1 to 1,000,000"),
    ([*COMMAND, "--imbalance", "1e308"], {}, r"--imbalance=1e\+308 must be a number from 1 to 1,000,000"),
    ([*COMMAND, "--imbalance", "nan"], {}, "--imbalance=nan must be a number from 1 to 1,000,000"),
    ([*COMMAND, "--show", "101"], {}, "--show=101 must be a number from 1 to 100"),
    ([*COMMAND, "--show", "0"], {}, "--show=0 must be a number from 1 to 100"),
    ([*COMMAND, "--context", "1," + "9" * 400], {}, r"--context=9{8}\.\.\.9{8} must be a number from 1 to 1,000,000"),
    ([*COMMAND, "--expert", "0"], {}, "--expert=0 must be a number from 1 to 1,000,000"),
    ([*COMMAND, "--price", "1e308"], {}, r"dollars_per_gpu_hour=1e\+308 must be a number from 1e-09 to 1,000,000,000"),
    ([*COMMAND, "--precision", "\x1b[2J"], {}, r"has no \\x1b\[2J; use"),
    (COMMAND, {"config": "a" * 4000}, "a ... a.* cannot be read: File name too long; give the config"),
    (COMMAND, {"config": "\x1b[2J\n.json"}, r"\\x1b\[2J\\n.json cannot be read: No such file"),
    (COMMAND, {"config": "pipe"}, "pipe cannot be read: it is no regular file; give the config"),
    (COMMAND, {"text": " " * 10**7}, "own.json cannot be read: it has more than 1 MB; give the config"),
    (COMMAND, {"text": json.dumps({**SMALL, "\x1b[2J": 1})}, r"not understood: \\x1b\[2J=1; if"),
    (COMMAND, {"text": json.dumps({**SMALL, "architectures": [[]]})}, "architectures=.* is not understood; use one"),
    (COMMAND, {"text": json.dumps({**SMALL, "layer_types": [[]]})}, r"layer_types has \[\]; known"),
    (COMMAND, {"text": json.dumps({**SMALL, "num_hidden_layers": 10**9})}, "from 1 to 10,000"),
    (COMMAND, {"text": json.dumps({**SMALL, "hidden_size": 10**400})}, "must be a number from 1 to 1,000,000,000"),
    (["--batch-tokens", "4M", "--cluster", "none.toml"], {}, "none.toml cannot be read: No such file.*--help` shows"),
]


MIXED = {**MIXTRAL, "num_hidden_layers": 4}
MORE = [
    (MIXED, 1, "--expert-model-parallel-size 8"),
    ({**QWEN3_MOE, "num_hidden_layers": 4}, 1, "--moe-router-topk 8"),
    ({**DEEPSEEK, "num_hidden_layers": 5}, 1, "--moe-layer-freq '([0]*3+[1]*2)'"),
]


@pytest.mark.parametrize(("config", "plan", "option"), MORE, ids=[option for *_, option in MORE])
def test_a_mixture_is_planned_with_its_experts(ask, folder, config, plan, option):
    (folder / "own.json").write_text(json.dumps(config))
    words = ["--expert", "8", "--sequence", "4096", "--zero", "1", "--imbalance", "1.2", "--plan", plan]
    status, out, errors = ask(*COMMAND, *words, config="own.json")
    assert (status, errors) == (0, "")
    assert "times as long as predicted" in out
    assert "ep 8" in out
    assert option in out


def test_whole_experts_are_tried_where_one_asks(ask, folder):
    """Eight experts on eight ranks: with tp 2 of dp 4 each rank holds a whole one, or two halves."""
    (folder / "own.json").write_text(json.dumps(MIXED))
    words = ["--expert", "4", "--sequence", "4096", "--zero", "1", "--show", "20"]
    for more, expected in (([], False), (["--whole-experts"], True)):
        status, out, _ = ask(*COMMAND, *words, *more, config="own.json")
        assert status == 0
        assert ("whole experts" in out) == expected


@pytest.mark.parametrize(("words", "where", "message"), BAD, ids=[message[:40] for *_, message in BAD])
def test_bad_input_gets_one_line_with_the_way_out(ask, folder, words, where, message):
    where = dict(where)
    os.mkfifo(folder / "pipe")
    if "text" in where:
        (folder / "own.json").write_text(where.pop("text"))
        where["config"] = "own.json"
    status, out, errors = ask(*words, **where)
    assert (status, out) == (2, "")
    assert errors.count("\n") == 1
    assert re.search(message, errors), errors
    assert errors[:-1].isprintable()
    assert len(errors) < 1500
    assert re.search(r"; |\buse\b|must be", errors)


BAD_CLUSTERS = ["chip = ", "gpus = 8", "chip = 3\ngpus = 8", 'node = "DGX H100"\ngpus = 4', "a = 1"]
BAD_CLUSTERS += [f"{OURS}watts_per_gpu = {'9' * 400}", OURS.replace("= 8", "= 1024"), f'{OURS}"\\u001b[2J" = 1']


@pytest.mark.parametrize("text", BAD_CLUSTERS)
def test_a_bad_cluster_gets_one_line(ask, folder, text):
    (folder / "bad.toml").write_text(text)
    status, out, errors = ask("--cluster", folder / "bad.toml", "--gpus", 16, "--batch-tokens", "512K")
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors[:-1].isprintable()


def test_the_largest_numbers_have_a_finite_answer_in_time(ask, folder):
    """The largest node, with a name that would clear a terminal, and the largest price, power and training."""
    large = OURS.replace("gpus = 8", "gpus = 72").replace("cards = 8", "cards = 72").replace("= 3", "= 1e9")
    (folder / "large.toml").write_text(f'{large}name = "\\u001b[2J"\nwatts_per_gpu = 1e9\noverhead = 1e9')
    words = ["--cluster", folder / "large.toml", "--batch-tokens", 144 * 4096, "--tokens", "1000000T"]
    began = time.process_time()
    status, out, _ = ask(*words)
    assert time.process_time() - began < 10  # on a busy machine; it took minutes
    assert status == 0
    assert "inf" not in out
    assert "2 × \\x1b[2J, H100" in out
    assert all(each.isprintable() for each in out.splitlines())
    _, out, _ = ask(*words, "--json")
    json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (folder / "config.json").write_text(json.dumps({**SMALL, "num_hidden_layers": 10_000}))
    assert ask(*COMMAND)[0] == 1


def test_amounts():
    assert [amounts.batch(each) for each in ("8192", "8k", "4M", "0.5M")] == [8192, 8192, 2**22, 2**19]
    assert [amounts.training(each) for each in ("15T", "1.5b", "300")] == [15 * 10**12, 1_500_000_000, 300]
    with pytest.raises(ValueError, match="with one of K, M"):
        amounts.batch("1T")


def test_from_a_shell(folder):
    command = [sys.executable, "-m", "shardlab.plan", str(folder), *COMMAND, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["plans"]


@pytest.mark.parametrize(
    ("places", "status", "errors"),
    [
        ("| true", 141, ""),  # which closes the pipe, as `head` does
        ("> /dev/full", 2, "the answer cannot be written: No space left on device; give it another place\n"),
        ("2>&-", 0, ""),
        (">&-", 2, "the answer cannot be written: the output is closed; give it another place\n"),
    ],
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_an_output_that_takes_no_answer_gets_no_traceback(folder, places, status, errors):
    command = shlex.join([sys.executable, "-m", "shardlab.plan", str(folder), *COMMAND])
    shell = ["bash", "-c", f"set -o pipefail; {command} {places}"]
    ended = subprocess.run(shell, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (status, errors)
