"""Copy modules into a course, as a package of its own.

    python -m shardlab.files.take plain.pipeline plain.zero course     # writes the folder course

The copies are read and changed there, and imported beside an installed `shardlab`:

    from course.plain import pipeline
"""

import importlib.util
import keyword
import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from . import imports
from .given import shown
from .project import PACKAGE, ROOT
from .terminal import Parser, complain, guarded
from .writing import new_folder

WRONG = 2  # exit status
OWN = PACKAGE.name
IMPORT = re.compile(rf"^(\s*(?:from|import) ){OWN}\b", re.MULTILINE)
ROOMS = ("plain", "ranks")
HELP = "copy modules into a course, as a package of its own, with the files that they import"
MODEL = {  # what a plain file uses of a model that is not the book's
    "context_parallel": "attention whose function can be replaced, and positions that can be given",
    "data_parallel": "any torch.nn.Module",
    "expert_parallel": (
        "modules with experts, a ModuleDict by number; rules.num_experts; shared, or None; "
        "compute(x, chosen, weights), which is replaced; and group, for the load"
    ),
    "generator": (
        "embedding, blocks, norm and head, called one after the other; blocks with an attention "
        "that has k, v and head_size, and whose function and positions can be replaced; and of "
        "spec vocab_size and context_length"
    ),
    "hand_over": "parameters by name, cut as sharding.places lists them",
    "linear_attention": "attention whose function can be replaced",
    "low_precision": "nothing",
    "muon": "matrices, each with as many rows as the ranks divide",
    "pipeline": (
        "embedding, blocks, norm and head, called one after the other; loss(logits, targets); "
        "spec.hidden_size and spec.tied"
    ),
    "ring_attention": "attention whose function can be replaced, and positions that can be given",
    "rounded_linear": "layers of torch.nn.Linear",
    "tensor_parallel": (
        "embedding.tokens; blocks with attention.q, k, v, out and mlp.up, down, gate; head and "
        "loss; and of spec num_heads, kv_heads, ffn, vocab_size, experts, tied"
    ),
    "zero": "a list of layers, called one after the other, and a loss of output and targets",
}


def take(modules: Sequence[str], folder: Path) -> list[Path]:
    """Copy modules and all that they import into a package with the name of a new folder.

    modules: such as "plain.pipeline" or "ranks.zero". Returns the copied files, a module before
    what it imports. Errors: ValueError for another module, for a folder that is there, and for one
    whose name is no name of a package or that of a module of Python's; nothing is left then.
    """
    name = folder.name
    if not name.isidentifier() or keyword.iskeyword(name) or name == OWN:
        raise ValueError(f"{shown(name)} is no name of a new package; try course")
    if not os.path.lexists(folder) and _is_taken(name, folder.parent):
        raise ValueError(f"{shown(name)} is a module already, which yours would hide; try course")
    needed = [path for each in modules for path in imports.files(_module(each))]
    written = []
    with new_folder(folder):
        for path in dict.fromkeys(needed):
            copy = folder / path.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = IMPORT.sub(rf"\g<1>{name}", path.read_text(encoding="utf-8"))
            for inside in {*copy.parents} - {*folder.parents}:
                (inside / "__init__.py").touch()
            copy.write_text(text, encoding="utf-8")
            written.append(copy)
        shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    return written


def _is_taken(name: str, place: Path) -> bool:
    """Tell whether Python has a module of this name, or `place`, where a package will lie."""
    if name in sys.stdlib_module_names or (name.startswith("__") and name.endswith("__")):
        return True
    if place.is_dir() and PathFinder.find_spec(name, [str(place)]):
        return True
    return importlib.util.find_spec(name) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or 2 for what cannot be taken."""
    parser = Parser(prog="python -m shardlab.files.take", description=HELP)
    parser.add_argument("module", nargs="+", help="such as plain.pipeline or ranks.zero")
    parser.add_argument("folder", type=Path, help="a new one; its name is that of the package")
    asked = parser.parse_args(arguments)
    try:
        written = take(asked.module, asked.folder)
    except ValueError as error:
        complain(str(error))
        return WRONG
    for copy in written:
        print(f"{len(copy.read_text(encoding='utf-8').splitlines()):5} lines  {copy}")
    for name in asked.module:
        room, _, last = name.rpartition(".")
        print(f"\nfrom {'.'.join([asked.folder.name, *room.split('.')])} import {last}")
        if room == "plain":
            print(f"Of a model it uses {MODEL[last]}.")
    return 0


def _module(name: str) -> ModuleType:
    """Import one of the modules that can be taken."""
    room, _, last = name.partition(".")
    if room not in ROOMS or not re.fullmatch(r"[a-z]\w*(\.\w+)*", last):
        raise ValueError(f"{shown(name)} is no module of {' or '.join(ROOMS)}; try plain.pipeline")
    try:
        return importlib.import_module(f"{OWN}.{name}")
    except ModuleNotFoundError:
        raise ValueError(f"{OWN} has no module {shown(name)}; try plain.pipeline") from None


if __name__ == "__main__":
    sys.exit(guarded(main))
