"""The browser of the tools: an installed Chromium, else the one that playwright brings."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = "chromium-headless-shell", "chromium", "google-chrome"  # the first has no windows, and is twice as fast
ARGUMENTS = [
    "--no-sandbox",  # containers run this as root, where the sandbox refuses to start
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


@contextmanager
def started() -> Iterator[Browser]:
    """A running browser without a window, which ends with the block."""
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=installed, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
