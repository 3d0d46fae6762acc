"""The browser of the tools: an installed Chromium, else the one that playwright brings."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = "chromium-headless-shell", "chromium", "google-chrome"


@contextmanager
def started() -> Iterator[Browser]:
    """A running browser without a window, which ends with the block."""
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=installed, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()
