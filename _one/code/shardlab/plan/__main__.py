"""Plan the training of a model on a cluster: `python -m shardlab.plan --help`."""

import json
import os
import sys

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
        print(error, file=sys.stderr)
        return NOT_UNDERSTOOD
    _progress(f"tried {answer.found.count:,} plans")
    if asked.as_json:
        print(json.dumps(answer.data, indent=2))
    else:
        print("\n".join(lines(answer)))
    return FITS if answer.rows else NOTHING_FITS


def _progress(text: str) -> None:
    """Show progress at a terminal; files and pipes get the answer alone."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # such as: | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
