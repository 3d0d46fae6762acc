"""The import graph is the architecture, and chapters only use what the package has."""

import ast
import functools
import re
import subprocess
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "code" / "shardlab"
MODULES = sorted(PACKAGE.rglob("*.py"))
CHAPTERS = sorted((ROOT / "book").glob("*.md"))
BRIDGES = {
    *("model", "sharding", "schedules", "exchanges", "trace", "files"),
}
MAY_IMPORT = {  # room -> rooms it may use, beside itself
    "__init__": set(),
    **{bridge: BRIDGES for bridge in BRIDGES},
    "costs": BRIDGES,
    "comm": set(),
    "launch": {"comm"},
    "plain": {"comm"},
    "ranks": BRIDGES | {"comm", "plain"},
    "figures": BRIDGES,
    "explorers": BRIDGES | {"costs", "figures"},
    "exercises": BRIDGES | {"costs", "comm", "launch", "plain", "ranks"},
    "plan": BRIDGES | {"costs"},
    "own": BRIDGES | {"costs", "figures"},
    "preflight": BRIDGES | {"comm", "costs", "launch", "plan"},
}
MAY_UNPICKLE = {  # module, or folder -> what it unpickles
    "launch": "calls and results, from sockets to its own processes",
    "own/flight.py": "containers, texts and numbers: its unpickler refuses every class",
    "exercises/notebook.py": "nothing: it tells the pickler that a learner's file travels whole",
}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
NAMES_TORCH_DISTRIBUTED = {"comm.py", "ranks/observe/ledger.py", "ranks/checkpoint/together.py"}
NAMES_TORCH_DISTRIBUTED |= {"preflight/roll.py"}  # who is missing is known before there is a group

# In ranks a method uses what all methods share, and no other method.
SHARED = {"agreement", "backward", "mesh", "mixture", "text", "transformer"}
ACROSS = {  # (who, whom) -> why
    ("checkpoint", "data_parallel"): "a checkpoint is made of what replicas hold",
    ("checkpoint", "zero"): "and of what the ranks of ZeRO hold",
    ("mixture", "backward"): "a forward that is recomputed counts no token again",
    ("transformer", "mixture"): "it is a block of the model",
    **{("train", each): "it puts the methods together" for each in ("checkpoint", "data_parallel", "zero")},
    **{("train", each): "it puts the methods together" for each in ("tensor_parallel", "context_parallel", "pipeline")},
    ("train", "expert_parallel"): "it puts the methods together",
}
# In costs a subject uses those that stand before it.
LEVELS = [
    {"units"},
    {"facts"},
    {"program"},
    {"programs"},
    {"training"},
    {"compute", "memory", "collectives", "operations"},
    {"context_parallel"},
    {"traces"},
    {"expert_parallel"},
    {"zero"},
    {"step"},
    {"data_parallel", "tensor_parallel", "pipeline", "generation"},
    {"composition", "planning"},
    {"published"},
]


def name(path):
    return path.relative_to(PACKAGE).as_posix()


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def entry(path):
    """A folder of a room, or a file beside the folders; of the room itself its __init__."""
    return path.relative_to(PACKAGE).parts[1].removesuffix(".py")


def of_room(*rooms):
    return [path for path in MODULES if room(path) in rooms and path != PACKAGE / "__init__.py"]


@functools.cache
def tree(path):
    return ast.parse(path.read_text())


@functools.cache
def imports(path):
    """Everything a module imports, by absolute dotted name."""
    here = ["shardlab", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def within(prefix, path):
    """What a module imports below `prefix`, by the first name after it."""
    return {each.removeprefix(prefix).split(".")[0] for each in imports(path) if each.startswith(prefix)}


def faults(paths, fault):
    """What is wrong with each file; only those with a fault. One test for each rule: a test for each file is slow."""
    return {path.relative_to(ROOT).as_posix(): found for path in paths if (found := fault(path))}


def brings(*packages):
    """What a file imports of these packages."""
    return lambda path: {each for each in imports(path) if each.split(".")[0] in packages}


# ---- the package ---------------------------------------------------------------------------------------------------


def test_data_flows_one_way():
    wrong = faults(MODULES, lambda path: within("shardlab.", path) - MAY_IMPORT[room(path)] - {room(path)})
    assert wrong == {}, "move what both need into a room that both may import, see MAY_IMPORT"


def test_what_a_run_should_take_is_pure_python():
    wrong = faults(of_room("costs", *BRIDGES), brings("torch", "numpy", "plotly"))
    assert wrong == {}, "compute with plain numbers, or move it to ranks or figures"


def test_few_modules_name_torch_distributed():
    others = [path for path in MODULES if name(path) not in NAMES_TORCH_DISTRIBUTED and "launch" not in path.parts]
    wrong = faults(others, lambda path: {each for each in imports(path) if each.startswith("torch.distributed")})
    assert wrong == {}, "take a group and call comm"


def test_files_are_never_unpickled():
    """A pickle can run any code: what is loaded from files is text and numbers."""
    others = [path for path in MODULES if not {name(path), name(path.parent)} & MAY_UNPICKLE.keys()]
    checkpoint = "torch.distributed.checkpoint"
    assert faults(others, brings(*PICKLES)) == {}
    assert faults(others, lambda path: {each for each in imports(path) if each.startswith(checkpoint)}) == {}
    assert faults(others, lambda path: re.findall(r"torch\.(?:load|save)\(", path.read_text())) == {}


def test_what_runs_draws_nothing():
    assert faults(of_room("comm", "launch", "plain", "ranks"), brings("plotly", "ipywidgets")) == {}


def test_a_method_uses_what_all_share_and_no_other_method():
    def strangers(path):
        allowed = set() if entry(path) in SHARED else SHARED
        excepted = {whom for who, whom in ACROSS if who == entry(path)}
        return within("shardlab.ranks.", path) - {entry(path)} - allowed - excepted

    wrong = faults(of_room("ranks"), strangers)
    assert wrong == {}, "put what two methods share beside their folders, see SHARED, or say why in ACROSS"


def test_no_exception_stands_here_in_vain():
    used = {(entry(path), each) for path in of_room("ranks") for each in within("shardlab.ranks.", path)}
    assert {arrow for arrow in ACROSS if (PACKAGE / "ranks" / arrow[0]).exists()} <= used
    pickling = [path for path in MODULES if {each.split(".")[0] for each in imports(path)} & PICKLES]
    assert MAY_UNPICKLE.keys() <= {name(each) for path in pickling for each in (path, path.parent)}


def test_a_subject_uses_those_before_it():
    def later(path):
        level = next(i for i, each in enumerate(LEVELS) if entry(path) in each or entry(path) == "__init__")
        return within("shardlab.costs.", path) - {entry(path)} - set().union(*LEVELS[:level])

    assert faults(of_room("costs"), later) == {}, "a subject uses those before it in LEVELS; move the function down"


def test_the_files_of_a_folder_can_be_read_one_after_another():
    """They do not import each other in a circle."""

    def circle(folder):
        prefix = ".".join(["shardlab", *folder.relative_to(PACKAGE).parts, ""])
        files = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        try:
            TopologicalSorter({path.stem: within(prefix, path) - {path.stem} for path in files}).prepare()
        except CycleError as error:
            return " -> ".join(error.args[1])

    assert faults({path.parent for path in of_room("costs", "launch", "plain", "ranks")}, circle) == {}


def test_a_file_of_tests_says_what_it_holds_true():
    def wrong(path):
        first = (ast.get_docstring(tree(path)) or "").partition("\n\n")[0]
        return "" if first.endswith(".") else "begin with a sentence that says what the tests hold true"

    assert faults((ROOT / "tests").rglob("test_*.py"), wrong) == {}


def test_a_file_says_which_idea_it_holds():
    wrong = faults(MODULES, lambda path: not ast.get_docstring(tree(path)))
    assert wrong == {}, "begin with a docstring of one sentence"


def test_a_public_class_name_stands_for_one_thing():
    """A plain file and its engine call the same thing alike; an exercise is read alone, and `Given` is in its frame."""
    places = defaultdict(list)
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(room(path))
    several = {each: sorted(rooms) for each, rooms in places.items() if len(rooms) > 1}
    twins = {each for each, rooms in several.items() if rooms == ["plain", "ranks"]}
    framed = {"Given"} if set(several.get("Given", ())) == {"exercises"} else set()
    again = {each: rooms for each, rooms in several.items() if each not in twins | framed}
    assert again == {}, "one noun for one thing: rename one of them"


def test_a_chapters_folder_holds_exercises_only():
    """What several of them share stands in exercises/shared, and exercises/questions has those for an exam."""

    def wrong(path):
        exercise = "\nEXERCISE = " in path.read_text()
        return exercise != (path.stem != "__init__" and path.parent.name not in ("shared", "questions"))

    assert faults((PACKAGE / "exercises").glob("*/*.py"), wrong) == {}


def test_the_code_folder_is_not_a_package():
    assert not (ROOT / "code" / "__init__.py").exists()
    import code

    assert hasattr(code, "InteractiveConsole"), "the standard library's `code` is shadowed"


def test_a_plain_file_leans_on_torch_and_comm():
    allowed = {"torch", "collections", "typing", "functools", "math"}

    def others(path):
        ours = {each for each in imports(path) if each.startswith("shardlab.")}
        roots = {each.split(".")[0] for each in imports(path) - ours}
        return {each for each in ours if each.split(".")[1] != "comm"} | (roots - allowed)

    files = [path for path in of_room("plain") if path.stem != "__init__"]
    assert faults(files, others) == {}
    words = ast.get_docstring(tree(PACKAGE / "plain" / "__init__.py"))
    assert [path.stem for path in files if path.stem not in words] == [], "the reading order of plain names them"
    methods = {"data_parallel", "zero", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline"}
    assert methods <= {path.stem for path in files}


# ---- chapters ------------------------------------------------------------------------------------------------------


def cells(chapter):
    """The code cells of a MyST notebook, without their directives."""
    blocks = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", chapter.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(r"\A(:[^\n]*\n|---\n.*?\n---\n)*", "", block, flags=re.DOTALL) for block in blocks]


@functools.cache
def public_names():
    nodes = [node for path in MODULES for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {node.name for node in nodes if not node.name.startswith("_")}


def test_a_chapter_redefines_nothing_of_the_package():
    def again(chapter):
        nodes = [node for cell in cells(chapter) for node in ast.parse(cell).body]
        return public_names() & {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    assert faults(CHAPTERS, again) == {}, "import the package's, or choose another name"


SHOWN = ("shardlab.figures", "shardlab.explorers")  # what they return is there to be looked at


def shows(node, names):
    """Whether this is a call of one of these names, or of something in a module of that name."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in names


def unseen(chapter):
    """Statements whose value a reader should see, and that no notebook shows: not the last of their cell."""
    parsed = [ast.parse(cell) for cell in cells(chapter)]
    nodes = [node for cell in parsed for node in ast.walk(cell)]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module.startswith(SHOWN)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        if any(isinstance(node, ast.Return) and shows(node.value, names) for node in ast.walk(function)):
            names.add(function.name)
    last = [id(cell.body[-1]) for cell in parsed if cell.body]
    statements = [node for node in nodes if isinstance(node, ast.Expr) and id(node) not in last]
    return [ast.unparse(node) for node in statements if shows(node.value, names)]


def test_what_a_cell_makes_to_be_seen_is_its_last_expression():
    """Or is given to `display`: a notebook shows the value of a cell's last expression, and of no other."""
    assert faults(CHAPTERS, unseen) == {}


def test_chapters_are_text_without_outputs():
    tracked = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=ROOT, capture_output=True, text=True).stdout
    assert tracked == "", "chapters are .md; a notebook is made from them"


def test_no_chapter_stands_in_the_contents_that_is_not_written():
    listed = re.findall(r"(?:root|file): *(\S+)", (ROOT / "_toc.yml").read_text())
    reference = {f"book/reference/{path.stem}" for path in (ROOT / "book" / "reference").glob("*.md")}
    assert {f"book/{path.stem}" for path in CHAPTERS} | reference == set(listed)


def test_each_file_of_the_extension_says_what_becomes_of_it_with_another_builder():
    extension = sorted((ROOT / "book" / "_ext").glob("*.py"))
    assert [path.name for path in extension if "\nWithout Jupyter Book 1: " not in path.read_text()] == []
