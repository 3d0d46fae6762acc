"""The tests mirror the package: a module has its test where one looks for it, or a reason to be tested elsewhere."""

import ast
import functools

from .test_house import PACKAGE, ROOT, faults, imports, name, of_room, tree

TESTS = ROOT / "tests"
MIRRORED = ("comm", "launch", "plain", "model", "sharding", "files", "costs", "ranks", "figures", "explorers")
MIRRORED += ("preflight", "own")
TESTED_IN = {  # a module, or all of a folder -> where it is tested instead of in a file of its own, and why
    "launch": ("launch/test_run.py", "its processes only live together"),
    "files/project.py": ("files/test_measured.py", "the files of the benches are found by it"),
    "model/attention.py": ("model/test_spec.py", "a size of the model"),
    "model/details.py": ("ranks/test_transformer.py", "the model computes what it says"),
    "ranks/context_parallel": ("ranks/context_parallel/test_engine.py", "its parts only work together"),
    "ranks/expert_parallel": ("ranks/expert_parallel/test_engine.py", "a dispatch needs ranks that hold experts"),
    **{
        f"ranks/players/{each}.py": ("ranks/players/test_players.py", "what is spread is played, and put together")
        for each in ("redistributed", "spread")
    },
    "ranks/players/lines.py": ("explorers/test_missing.py", "its lines are puzzles, held to one process"),
    "sharding/types/methods": ("ranks/players/test_mutation.py", "a text is right if it is one process's"),
    "sharding/types/bugs": ("ranks/players/test_numbers.py", "their numbers are those that players hold"),
    "sharding/types/altered.py": ("sharding/types/test_advice.py", "advice is a text that is altered"),
    "sharding/types/mutants.py": ("ranks/players/test_mutation.py", "what is accepted is played"),
    "ranks/zero": ("ranks/zero/test_sharding.py", "its parts only work together"),
    "ranks/pipeline/messages.py": ("ranks/pipeline/test_engine.py", "it speaks in a running pipeline only"),
    "ranks/pipeline/stage.py": ("ranks/pipeline/test_engine.py", "it computes in a running pipeline only"),
    "ranks/tensor_parallel/linear.py": ("ranks/tensor_parallel/test_engine.py", "held to the whole model"),
    "ranks/tensor_parallel/gradients.py": ("ranks/tensor_parallel/test_engine.py", "held to the whole model"),
    "ranks/tensor_parallel/regather.py": ("ranks/tensor_parallel/test_sequence.py", "it only exists beside slices"),
    "ranks/checkpoint/folders.py": ("ranks/checkpoint/test_saving.py", "it names and finds the files"),
    "ranks/checkpoint/index.py": ("ranks/checkpoint/test_loading.py", "it is what a checkpoint that loads is held to"),
    "ranks/checkpoint/together.py": ("ranks/checkpoint/test_saving.py", "ranks fail together where they save and load"),
    **{
        f"ranks/checkpoint/hugging_face/{each}.py": (
            "ranks/checkpoint/hugging_face/test_reading.py",
            "a name is right if the model reads its numbers there",
        )
        for each in ("names", "files")
    },
    "ranks/memory/hosted.py": ("ranks/memory/test_offload.py", "half of offload"),
    "files/described.py": ("plan/test_plan.py", "the planner's command reads both"),
    "ranks/observe/flops.py": ("ranks/observe/test_trace.py", "it counts what a program records"),
    "ranks/observe/sockets.py": ("ranks/observe/test_ledger.py", "it needs ranks that send"),
    "costs/facts/hugging_face": ("costs/facts/test_hugging_face.py", "its parts only read together"),
    "costs/memory/routed.py": ("costs/memory/test_counted.py", "what a mixture keeps is held to torch"),
    "costs/facts/limits.py": ("costs/facts/test_machines.py", "limits are met where a file is read"),
    "costs/facts/nodes.py": ("costs/facts/test_network.py", "its nodes are what the network is tested on"),
    "costs/facts/assembly.py": ("costs/facts/test_network.py", "wires are tested as nodes have them"),
    "costs/facts/hops.py": ("costs/facts/test_network.py", "a path needs a network"),
    "costs/collectives/bandwidth.py": ("costs/collectives/test_algorithms.py", "bandwidths of its costs"),
    "costs/planning/flags": ("costs/planning/test_flags.py", "one list of names for each program"),
    "costs/planning/tables.py": ("costs/planning/test_planner.py", "half of the planner"),
    "costs/planning/plans.py": ("costs/planning/test_planner.py", "what the planner is asked and answers"),
    "costs/published/bus_bandwidth.py": ("costs/traces/test_traffic.py", "traffic predicts it"),
    "costs/published/engines.py": ("costs/generation/test_hand_over.py", "each row is held where it is predicted"),
    "costs/planning/reasons.py": ("costs/planning/test_planner.py", "its texts are those of rejected plans"),
    "costs/published/studies.py": ("costs/planning/test_planner.py", "the planner finds their layouts"),
    **{
        f"costs/step/{each}.py": ("costs/step/test_breakdown.py", "a term of the sum")
        for each in ("axes", "elementwise", "exposed", "layer_time", "pipeline", "products", "replicas", "run")
    },
    "own/recording.py": ("own/test_kineto.py", "a recording is what a reader returns"),
    "own/text.py": ("own/test_report.py", "it prints the report"),
    "own/__main__.py": ("own/test_report.py", "its screen is the report's text"),
    "preflight/__main__.py": ("preflight/test_together.py", "a command of ranks"),
    "preflight/roll.py": ("preflight/test_together.py", "a roll call needs ranks"),
    "costs/program.py": ("costs/compute/test_kernels.py", "a step is timed for each"),
    "costs/programs.py": ("costs/compute/test_kernels.py", "a step is timed for each"),
    "costs/traces/knee.py": ("explorers/test_placement.py", "its curves are those of the explorer"),
    "costs/traces/transfers.py": ("costs/traces/test_replay.py", "half of replay"),
    **{
        f"figures/{each}.py": ("figures/test_compute.py", "what all figures are made with")
        for each in ("lines", "style")
    },
    "figures/bars.py": ("figures/test_memory.py", "rows of bars are those of a memory"),
    "figures/boxes.py": ("figures/test_tensor_parallel.py", "pieces of a matrix are boxes"),
    "figures/history.py": ("figures/test_compute.py", "a figure of that chapter"),
    "figures/predictions.py": ("figures/test_planner.py", "figures of the same chapter"),
    "figures/topology.py": ("figures/test_interconnects.py", "a figure of that chapter"),
    **{
        f"explorers/{each}.py": ("test_explorer.py", "what all are made with")
        for each in ("explorer", "live", "page", "view")
    },
    **{f"explorers/{each}.py": ("explorers/test_guess.py", "half of a guess") for each in ("kept", "questions")},
}


def own(path):
    """Where one looks for the test of a module."""
    return (TESTS / name(path)).with_name(f"test_{path.name}")


def test_a_module_has_its_test_where_one_looks_for_it():
    def untested(path):
        if not own(path).exists() and not {name(path), name(path.parent)} & TESTED_IN.keys():
            return f"write {own(path).relative_to(ROOT)}, or say in TESTED_IN where it is tested, and why"

    assert faults([path for path in of_room(*MIRRORED) if path.stem != "__init__"], untested) == {}


def test_what_is_tested_elsewhere_is_used_there():
    for listed, (test, why) in TESTED_IN.items():
        files = sorted((PACKAGE / listed).glob("[a-z]*.py")) if (PACKAGE / listed).is_dir() else [PACKAGE / listed]
        assert why
        assert {file for file in files if not own(file).exists()}, listed
        assert set(files) <= used(TESTS / test), listed


def used(test):
    """The files of the package that a test imports, and those that they import, and so on."""
    found, ahead = set(), [test]
    while ahead:
        new = files_of(ahead.pop()) - found
        found |= new
        ahead += new
    return found


@functools.cache
def files_of(path):
    """The files of the package that one file imports; with a name of a folder all that its __init__ lists."""
    found = set()
    for each in imports(path) if path.is_relative_to(PACKAGE) else imported_by(path):
        parts = each.split(".")[1:] if each.startswith("shardlab.") else []
        for count in range(1, len(parts) + 1):
            module = PACKAGE.joinpath(*parts[:count])
            found |= {file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file()}
    return found


def imported_by(test):
    """The same for a test, whose imports of the package are absolute."""
    nodes = ast.walk(tree(test))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
