"""What the tests of pages in a real browser share."""

from __future__ import annotations

import itertools
import os
import re
import time
from base64 import b64decode
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WAIT_S = 60.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of a condition."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not seen in {WAIT_S:g} s: {what}")


AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then((found) => done(
  found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`)));
"""


def complaints(browser: Any) -> list[str]:
    """Return the errors that the browser has logged, without those of pages of earlier services on other ports.

    A page asks for its icon when it likes, also after its service has ended.
    """
    own = urlsplit(browser.current_url).port
    severe = [str(entry["message"]) for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    ports = [re.findall(r"http://127\.0\.0\.1:(\d+)/", message) for message in severe]
    return [message for message, found in zip(severe, ports, strict=True) if not found or str(own) in found]


def violations(browser: Any) -> list[str]:
    """Return what axe-core finds against the rules of accessibility."""
    browser.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return list(browser.execute_async_script(AXE))


def prefer(browser: Any, scheme: str = "") -> None:
    """Let the browser prefer ``light`` or ``dark`` colours, or nothing."""
    features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def fits(browser: Any) -> bool:
    """Return whether nothing is wider than the window."""
    return bool(browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"))


CLIPPED = """
return [...document.querySelectorAll("th, td")].filter((cell) => {
  if (!cell.offsetParent || !cell.textContent.trim()) return false;
  const own = cell.getBoundingClientRect();
  const text = document.createRange();
  text.selectNodeContents(cell);
  const right = Math.max(own.right, text.getBoundingClientRect().right);
  for (let outer = cell.parentElement; outer; outer = outer.parentElement) {
    if (getComputedStyle(outer).overflowX !== "visible") {
      const frame = outer.getBoundingClientRect();
      if (right > frame.right + 1 || own.left < frame.left - 1) return true;
    }
  }
  return right > innerWidth + 1 || cell.scrollWidth > cell.clientWidth + 1;
}).map((cell) => cell.textContent.trim().slice(0, 60));
"""


def clipped(browser: Any) -> list[str]:
    """Return the texts of the table cells that cannot be read whole without scrolling sideways."""
    return list(browser.execute_script(CLIPPED))


def check_everywhere(browser: Any, say: str) -> None:
    """Fail where a page breaks a rule of accessibility, is wider than its window or clips a cell of a table.

    It is shown in three widths, light and dark. ``SSI_SCREENSHOTS`` names a folder for pictures of it.
    """
    try:
        for width, scheme in itertools.product((1400, 1100, 360), ("light", "dark")):
            # A window is no narrower than 500 pixels; what it shows may be.
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            prefer(browser, scheme)
            assert violations(browser) == [], (say, width, scheme)
            assert fits(browser), (say, width)
            assert clipped(browser) == [], (say, width)
            if folder := os.environ.get("SSI_SCREENSHOTS"):
                shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
                (Path(folder) / f"{say}-{width}-{scheme}.png".replace(" ", "-")).write_bytes(b64decode(shot["data"]))
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        prefer(browser)
