"""A headless Chromium that is driven by selenium, for tests and pictures of the web console."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVER = "chromedriver"
WAIT_S = 30


def absent() -> str:
    """Returns which program is missing, as a reason to skip a test; empty if all are there."""
    if not any(map(shutil.which, CHROMIUM)):
        return f"no browser: none of {', '.join(CHROMIUM)} is on the PATH"
    return "" if shutil.which(DRIVER) else f"no browser: {DRIVER} is not on the PATH"


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def shape(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0, still: bool = True) -> None:
        """Sets the size of the page, the preferred colour scheme and whether motion is reduced."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        wishes = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wishes})

    def run(self, script: str, *arguments: object) -> Any:
        """Runs JavaScript in the page and returns its value."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, *arguments: object) -> Any:
        """Waits until a JavaScript expression is true, and returns it.

        Raises:
            AssertionError: it did not become true; the message has the text of the page.
        """
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.ui import WebDriverWait

        try:
            wait = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.05)
            return wait.until(lambda _: self.run(f"return {condition}", *arguments))
        except TimeoutException:
            text = self.run("return document.body.innerText")
            raise AssertionError(f"not true after {WAIT_S} s: {condition}\npage:\n{text}") from None

    def go(self, page: str, contains: str = "") -> None:
        """Opens a page of the console by its address and waits until its content holds a text."""
        self.run("location.hash = arguments[0]", f"#/{page}")
        self.wait("document.querySelector('main h1') && !document.querySelector('.skeleton')")
        self.wait("document.querySelector('main').innerText.includes(arguments[0])", contains)

    def text(self) -> str:
        """Returns the visible text of the page's content."""
        return str(self.run("return document.querySelector('main').innerText"))

    def overflow(self) -> int:
        """Returns by how many pixels the page is wider than its window."""
        return int(self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def complaints(self) -> list[str]:
        """Returns errors that the page reported: exceptions, violations of its policy, failed requests."""
        driver: Any = self.driver  # ``get_log`` has no annotations
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        thrown = [event["params"] for event in events if event["method"].endswith("exceptionThrown")]
        return [each["exceptionDetails"]["text"] for each in thrown] + [
            entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"
        ]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Runs a headless Chromium for the length of the block."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, CHROMIUM) if path)
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which(DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
