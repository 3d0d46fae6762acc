"""Sources as links: a table's words that lead to where its facts stand."""

import html
import re
from urllib.parse import urlsplit

from IPython.display import HTML

ADDRESS = re.compile(r"https?://[^\s()<>;]*[^\s()<>;.,:]")


def linked(text: str, source: str) -> HTML:
    """Text that leads to the first address of a source; plain text where the source has none."""
    found = ADDRESS.search(source)
    return HTML(_link(found[0], text) if found else html.escape(text))


def spelled(source: str) -> HTML:
    """A source in full, with the name of its site in the place of each address, which is too long for a table."""
    parts, begin = [], 0
    for found in ADDRESS.finditer(source):
        parts += [_words(source[begin : found.start()]), _link(found[0], site(found[0]))]
        begin = found.end()
    return HTML("".join([*parts, _words(source[begin:])]))


def site(address: str) -> str:
    """Whose page it is: the host, without www."""
    return urlsplit(address).netloc.removeprefix("www.")


def _words(text: str) -> str:
    """Plain words, with what stands between backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _link(address: str, text: str) -> str:
    return f'<a class="reference external" href="{html.escape(address)}">{html.escape(text)}</a>'
