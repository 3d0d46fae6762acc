"""Plan the training of a model on a cluster: `python -m shardlab.plan --help`."""

import json
import sys

from shardlab.files.given import shown
from shardlab.files.terminal import complain, guarded

from .answer import ask
from .arguments import parser, request
from .text import lines

FITS, NOTHING_FITS, NOT_UNDERSTOOD = 0, 1, 2


def main(words: list[str] | None = None) -> int:
    """Answer one command line; return the exit status."""
    given = parser().parse_args(words)
    try:
        asked = request(given)
        _progress(f"searching plans for {asked.question.cluster.gpus:,} GPUs ...")
        answer = ask(asked)
    except ValueError as error:
        complain(str(error))
        return NOT_UNDERSTOOD
    _progress(f"tried {answer.found.count:,} plans")
    if asked.as_json:
        print(json.dumps(answer.data, indent=2, allow_nan=False))
    else:
        print(shown("\n".join(lines(answer))))
    return FITS if answer.rows else NOTHING_FITS


def _progress(text: str) -> None:
    """Show progress at a terminal; files and pipes get the answer alone."""
    if sys.stderr and sys.stderr.isatty():
        print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(guarded(main))
