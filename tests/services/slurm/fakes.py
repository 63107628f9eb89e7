"""Commands of Slurm that read files, and a service that speaks the routes."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DEADLINE_S = 30.0
WAIT_S = 120.0
# Prints the rows of DIR/queue; what stands in DIR/fault happens instead, once for each word of it.
SQUEUE = """\
#!{python} -IS
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
given = [name for name in os.environ if name.startswith("SQUEUE_")] + [os.environ["TZ"]]
(here / "asked").open("a").write(" ".join(sys.argv[1:] + given) + "\\n")
first, _, rest = (here / "fault").read_text().partition(" ")
(here / "fault").write_text(rest)
if first == "fail":
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
if first == "hang":
    os.mkfifo(here / "fifo")
    open(here / "fifo").read()
if first == "garbage":
    print("one\\ntwo three")
elif first == "endless":
    while True:
        print("x" * 65536)
elif first == "user":
    sys.stderr.write("squeue: error: Invalid user: nobody-here\\n")
else:
    [form] = [word for word in sys.argv if word.startswith("--Format=")]
    mark = form.rpartition(":")[2]
    for row in (here / "queue").read_text().split("\\n")[:-1]:
        print("".join(value + mark for value in row.split("\\t")))
"""
SACCT = """\
#!{python} -IS
import pathlib, sys
here = pathlib.Path(__file__).parent
(here / "asked").open("a").write(" ".join(sys.argv[1:]) + "\\n")
text = (here / "accounts").read_text()
if text.startswith("error"):
    sys.exit("Slurm accounting storage is disabled" if "disabled" in text else text)
print(text, end="")
"""


class Slurm:
    """A directory with ``squeue`` and ``sacct``, to be the first one on ``PATH``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for name, source in (("squeue", SQUEUE), ("sacct", SACCT)):
            (directory / name).write_text(source.replace("{python}", sys.executable))
            (directory / name).chmod(0o700)
        for name in ("fault", "queue", "accounts", "asked"):
            (directory / name).touch()
        self.path = f"{directory}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": self.path}

    def show(self, *rows: tuple[str, ...]) -> None:
        """Have squeue print these jobs, see `row`."""
        text = "".join("\t".join(row) + "\n" for row in rows)
        (self.directory / "queue.new").write_text(text)
        (self.directory / "queue.new").replace(self.directory / "queue")

    def account(self, text: str) -> None:
        """Have sacct print this."""
        (self.directory / "accounts").write_text(text)

    def fault(self, *words: str) -> None:
        """Have the next calls of squeue go wrong: fail, hang, garbage, endless, user."""
        (self.directory / "fault").write_text(" ".join(words))

    def asked(self) -> list[str]:
        """The arguments of all calls."""
        return (self.directory / "asked").read_text().splitlines()


def row(id_: str, state: str, path: str, **other: str) -> tuple[str, ...]:
    """A job in the order of the fields that squeue is asked for."""
    values = {
        "JobArrayID": id_,
        "JobID": id_.partition("_")[0],
        "BatchFlag": "1",
        "RestartCnt": "0",
        "SubmitTime": "2026-11-24T13:52:40",
        "State": state,
        "Partition": "batch",
        "BatchHost": "n/a" if state == "PENDING" else "n1",
        "UserName": "alice",
        "StdOut": path,
        "StdErr": path,
        "Name": "train",
    }
    return tuple((values | other).values())


class Service(http.server.ThreadingHTTPServer):
    """An attribution service on loopback, with the routes `POST /logs` and `GET /logs`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.posts: list[dict[str, Any]] = []
        self.asked: Counter[str] = Counter()
        self.failures: list[int] = []  # HTTP status of the next answers; -1 = none at all
        self.token = ""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join(DEADLINE_S)
        self.server_close()

    def closings(self) -> Counter[str]:
        """How often each job was submitted as complete."""
        with self.lock:
            ends = [post for post in self.posts if post["analysis_intent"] == "terminal"]
            return Counter(post["job_id"] for post in ends)

    def wait_for(self, jobs: Iterable[str], intent: str) -> None:
        """Wait until each of these jobs was submitted like this."""
        missing = set(jobs)

        def there() -> bool:
            seen = {post["job_id"] for post in self.posts if post["analysis_intent"] == intent}
            return missing <= seen

        with self.changed:
            assert self.changed.wait_for(there, DEADLINE_S), f"{self.posts}"


class _Answering(http.server.BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._fails():
            return
        with self.server.changed:
            self.server.posts.append(body)
            self.server.changed.notify_all()
        self._answer(200, {"submitted": True, "normalized_path": body["log_path"]})

    def do_GET(self) -> None:
        [path] = parse_qs(urlsplit(self.path).query)["log_path"]
        if self._fails():
            return
        with self.server.changed:
            self.server.asked[path] += 1
            first = self.server.asked[path] == 1
            self.server.changed.notify_all()
        if first and path.endswith("0.out"):
            self._answer(200, {"status": "in_flight"})
            return
        recommendation = {"action": "RESTART", "source": "rules"}
        result = {"module": "log_analyzer", "result": f"{path}: rank 3 ran out of memory"}
        self._answer(
            200, {"status": "completed", "result": result, "recommendation": recommendation}
        )

    def _fails(self) -> bool:
        server = self.server
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            self._answer(401, {"error_code": "unauthorized", "message": "no"})
            return True
        with server.lock:
            status = server.failures.pop(0) if server.failures else 0
        if status > 0:
            self._answer(status, {"error_code": "internal", "message": "made up"})
        elif status < 0:
            self.close_connection = True
        return status != 0

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Program:
    """``undaunted slurm-monitor`` in a process of its own, until it is killed or told to end."""

    def __init__(
        self,
        environment: dict[str, str],
        service: Service,
        directory: Path,
        interval: str = "0.5",
    ) -> None:
        words = ("--attrsvc-endpoint", service.url, "--interval", interval)
        words += ("--state-dir", str(directory))
        command = [sys.executable, "-m", "undaunted", "slurm-monitor", *words]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.said = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.said:
                self.lines.append(line)
                self.said.notify_all()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until so many lines had this in them."""

        def there() -> bool:
            return sum(text in line for line in self.lines) >= times

        with self.said:
            assert self.said.wait_for(there, WAIT_S), self.lines[-5:]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code
