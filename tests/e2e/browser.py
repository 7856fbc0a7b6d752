"""A headless Chromium that tests drive through its debugging pipe, which needs no port and no package."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import axe_core_python

AXE = Path(axe_core_python.__file__).with_name("axe.min.js")
PROGRAMS = ("chromium-headless-shell", "chromium")
VIEWS = [{"width": width, "height": 900, "scheme": scheme} for width in (390, 1400) for scheme in ("light", "dark")]
SECONDS = 120  # for one answer: the machine may be busy


class Browser:
    """One browser with one page. `said` collects what its console and its security policy said, `requests` what it asked for."""

    def __init__(self, folder):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        assert program, f"none of {', '.join(PROGRAMS)} is here: scripts/deps.sh test installs one"
        to_browser, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4, one JSON text each, ended by a NUL.
        theirs = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (to_browser, from_browser)]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "browser", program, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1", f"--user-data-dir={folder}/profile",
             "--remote-debugging-pipe", "about:blank"],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(folder / "browser.log").open("wb"), start_new_session=True)
        for descriptor in (to_browser, from_browser, *theirs):
            os.close(descriptor)
        self.received, self.number, self.session, self.said, self.requests, self.loaded = b"", 0, None, [], [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        os.close(self.to_browser)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        os.close(self.from_browser)

    def message(self, deadline):
        while b"\0" not in self.received:
            left = deadline - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self.from_browser], [], [], left)[0]:
                more = os.read(self.from_browser, 1 << 20)
                assert more, f"the browser has ended: {self.process.poll()}"
                self.received += more
        text, self.received = self.received.split(b"\0", 1)
        message = json.loads(text)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, given):
        if method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(argument.get("value")) for argument in given["args"]))
        elif method == "Log.entryAdded":
            self.said.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def call(self, method, **given):
        self.number += 1
        number, deadline = self.number, time.monotonic() + SECONDS
        command = {"id": number, "method": method, "params": given, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to_browser, json.dumps(command).encode() + b"\0")
        while (message := self.message(deadline)).get("id") != number:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def view(self, width=1400, height=1000, scheme="light", media=""):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def open(self, path, **view):
        """Shows a file and waits until it has loaded; forgets what the page before it said."""
        if view:
            self.view(**view)
        self.said, self.requests, self.loaded = [], [], False
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        deadline = time.monotonic() + SECONDS
        while not self.loaded:
            self.message(deadline)
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def violations(self):
        """What axe-core finds wrong for people who use screen readers, keys or little contrast: ["rule: element", …]. A chart is a picture to them."""
        self.evaluate(f"void (() => {{ {AXE.read_text()} }})()")
        return self.evaluate("axe.run({ exclude: ['.chart svg'] }, { resultTypes: ['violations'] }).then(({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 200)}`)))")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path=None, whole=True):
        picture = base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
        if path:
            Path(path).write_bytes(picture)
        return picture

    def pdf(self, path=None):
        document = base64.b64decode(self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)["data"])
        if path:
            Path(path).write_bytes(document)
        return document
