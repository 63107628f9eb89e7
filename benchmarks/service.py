"""200 clients at once ask `undaunted serve`, some with hostile paths; it is killed meanwhile.

``python -m benchmarks.service [--clients 200] [--requests 20]`` makes logs in a temporary folder
(one of 10 GB, which takes no disk), and serves them on loopback. While one client flips a link
between a log and a file outside, and the huge log is being read, every client sends its requests
one after the other, over a connection each. Every answer is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from urllib.parse import quote

from undaunted.base.process import descendants, module_command

LOGS = 50
LINES = 20_000  # of each
SECRET = "outside-of-the-roots"
DEADLINE_S = 120.0
FAILURE = "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"


class Service:
    """The program, running."""

    def __init__(self, logs: Path, state: Path) -> None:
        words = (f"--allowed-root={logs}", "--port=0", f"--state-dir={state}")
        rates = [f"--rate-limit-{kind}=0" for kind in ("submit", "analyze", "preview")]
        command = module_command(
            "undaunted.cli.main", "serve", *words, *rates, "--analysis-timeout=20s"
        )
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.port = int(line.split("127.0.0.1:")[1].partition(",")[0])

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.communicate()

    def peak_mib(self) -> tuple[int, int]:
        """Of the service, and of the largest of its programs."""
        below = [peak_of(pid) for pid in descendants(self.process.pid)]
        return peak_of(self.process.pid), max(below, default=0)


def peak_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) >> 10


async def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    said = await reader.read()
    writer.close()
    head, _, answer = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), answer


class Load:
    """What the clients ask, and what must be answered."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.good = [str(make_log(logs / f"job{number}.log")) for number in range(LOGS)]
        (logs.parent / "secret").write_text(SECRET)
        os.mkfifo(logs / "fifo")
        (logs / "out").symlink_to(logs.parent / "secret")
        (logs / "up").symlink_to(logs.parent)
        self.flips = logs / "flips"
        self.flips.symlink_to(self.good[0])
        with (logs / "huge").open("wb") as file:
            file.truncate(10 << 30)
        self.refused = {
            f"{logs}/../secret": 403,
            f"{logs}/out": 403,
            f"{logs}/up/secret": 403,
            "/proc/self/environ": 403,
            "/proc/self/fd/0": 403,
            "/dev/zero": 403,
            f"{logs}/fifo": 400,
            f"{logs}/a\0b": 400,
            f"{logs}/{'x' * 3000}": 400,
            f"{logs}/gone": 404,
        }
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.ends: list[float] = []
        self.wrong: Counter[str] = Counter()
        self.leaked = 0
        self.ended = threading.Event()

    def flip(self) -> None:
        """Change where a link leads, as fast as possible."""
        draft = self.logs / ".draft"
        for target in self._targets():
            draft.symlink_to(target)
            draft.replace(self.flips)

    def _targets(self):
        while not self.ended.is_set():
            yield self.good[0]
            yield self.logs.parent / "secret"

    async def client(self, port: int, number: int, requests: int) -> None:
        dice = random.Random(number)
        for _ in range(requests):
            kind = dice.choice(["question", "question", "submission", "hostile", "link"])
            began = time.perf_counter()
            await getattr(self, kind)(port, dice)
            self.seconds[kind].append(time.perf_counter() - began)
        self.ends.append(time.perf_counter())

    async def question(self, port: int, dice: random.Random) -> None:
        status, answer = await ask(port, "GET", f"/logs?log_path={quote(dice.choice(self.good))}")
        right = status == 200 and json.loads(answer)["recommendation"]["action"] == "RESTART"
        self.wrong["question"] += not right

    async def submission(self, port: int, dice: random.Random) -> None:
        body = {"log_path": dice.choice(self.good), "user": "me", "job_id": dice.randrange(9)}
        status, _ = await ask(port, "POST", "/logs", body)
        self.wrong["submission"] += status != 200

    async def hostile(self, port: int, dice: random.Random) -> None:
        path, expected = dice.choice([*self.refused.items()])
        if dice.random() < 0.3:
            status, answer = await ask(port, "POST", "/logs", {"log_path": path})
        else:
            route = dice.choice(["/logs", "/print"])
            status, answer = await ask(port, "GET", f"{route}?log_path={quote(path)}")
        self.wrong["hostile"] += status != expected
        self.leaked += SECRET.encode() in answer

    async def link(self, port: int, dice: random.Random) -> None:
        route = dice.choice(["/print", "/logs"])
        status, answer = await ask(port, "GET", f"{route}?log_path={quote(str(self.flips))}")
        self.wrong["link"] += status not in {200, 403}
        self.leaked += SECRET.encode() in answer

    async def run(self, service: Service, clients: int, requests: int) -> tuple[int, int]:
        port = service.port
        huge = asyncio.ensure_future(ask(port, "GET", f"/logs?log_path={self.logs}/huge"))
        await asyncio.gather(*(self.client(port, one, requests) for one in range(clients)))
        peaks = service.peak_mib()  # while the huge one is being read
        status, answer = await huge
        self.wrong["huge"] += status != 200
        action = json.loads(answer)["recommendation"]["action"]
        print(f"log of 10 GB: {action}")
        return peaks


def make_log(path: Path) -> Path:
    step = "3: iteration {} | loss 3.2 | time {}\n"
    path.write_text("".join(step.format(n // 8, n) for n in range(LINES)) + FAILURE)
    return path


async def submit_all(service: Service, paths: list[Path], kill_after: int) -> list[str]:
    """Submit logs, and kill the service when so many were taken; return all that were."""
    taken = []

    async def one(path: Path) -> None:
        body = {"log_path": str(path), "job_id": "7", "analysis_intent": "terminal"}
        try:
            status, _ = await ask(service.port, "POST", "/logs", body)
        except (OSError, IndexError):
            return  # it was killed
        if status == 200:
            taken.append(str(path))
            if len(taken) == kill_after:
                service.process.kill()

    await asyncio.gather(*map(one, paths))
    return taken


def killed(logs: Path, state: Path, times: int) -> tuple[int, int]:
    """Kill the service while logs are submitted; return how many were taken, and lost."""
    taken: set[str] = set()
    for turn in range(times):
        paths = [logs / f"turn{turn}-{number}.log" for number in range(200)]
        for path in paths:
            path.write_text(FAILURE)
        service = Service(logs, state)
        taken |= set(asyncio.run(submit_all(service, paths, 1 + 40 * turn)))
        service.process.communicate()
    service = Service(logs, state)
    status, answer = asyncio.run(ask(service.port, "GET", "/jobs?limit=1000"))
    service.end(signal.SIGTERM)
    assert status == 200
    found = json.loads(answer)
    assert found["total"] <= 1000
    return len(taken), len(taken - {row["log_path"] for row in found["jobs"]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        logs = Path(place, "logs")
        logs.mkdir()
        load = Load(logs)
        service = Service(logs, Path(place, "state"))
        flipper = threading.Thread(target=load.flip)
        flipper.start()
        began = time.perf_counter()
        try:
            run = load.run(service, options.clients, options.requests)
            peaks = asyncio.run(asyncio.wait_for(run, DEADLINE_S))
            took = max(load.ends) - began
            stats = json.loads(asyncio.run(ask(service.port, "GET", "/stats"))[1])
        finally:
            load.ended.set()
            flipper.join()
            service.end(signal.SIGTERM)
        done = options.clients * options.requests
        print(f"{options.clients} clients, {done} requests in {took:.1f} s ({done / took:.0f}/s)")
        for kind, seconds in load.seconds.items():
            cuts = statistics.quantiles(seconds, n=100)
            print(f"{kind}: median {cuts[49] * 1e3:.0f} ms, 99 % {cuts[98] * 1e3:.0f} ms")
        print(f"wrong answers: {sum(load.wrong.values())} {dict(+load.wrong)}")
        print(f"read outside of the roots: {load.leaked}")
        print(f"analyses: {stats['analysed']} of {LOGS + 1} logs")
        print(f"memory: service {peaks[0]} MiB, largest program {peaks[1]} MiB")
        taken, lost = killed(logs, Path(place, "other-state"), 4)
        print(f"killed 4 times while logs were submitted: {taken} taken, {lost} lost")
        return int(bool(load.wrong.total() or load.leaked or lost))


if __name__ == "__main__":
    sys.exit(main())
