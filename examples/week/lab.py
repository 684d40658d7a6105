"""The lab: a workspace, its people, three hosts with a pod each, and the servers that take its notices."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
sys.path.insert(0, str(CHECKOUT / "tests"))

from diary import Watch  # noqa: E402 - what is below is found through the path above
from fleet import Dispatcher, Fleet, fleet_at  # noqa: E402
from nvml_driver import Driver, built_in  # noqa: E402
from told_notices import keeping, told  # noqa: E402
from told_servers import Hook, MailServer, hook, mail_server  # noqa: E402
from web_requests import Web  # noqa: E402

from dispatcher.cli.main import main  # noqa: E402

ADA, GRACE = "ada", "grace"
# Pods by name: each is on the host of that name, and has these slots.
PODS = {"gpu-a": ("--gpus", "0,1"), "gpu-b": ("--gpus", "0,1"), "desk": ("--slots", "3")}
SLOTS = {"gpu-a": 2, "gpu-b": 2, "desk": 3}
GPUS = {"gpu-a": 2, "gpu-b": 2}


class Lab:
    """What happens in the lab is done through this, as its people would do it."""

    def __init__(self, fleet: Fleet, drivers: dict[str, Driver], mail: MailServer, chat: Hook) -> None:
        self.fleet = fleet
        self.root = fleet.root
        self.mail = mail
        self.chat = chat
        self.watch = Watch(fleet.layout.jobs_dir)
        self.pods: dict[str, Dispatcher] = {}
        self._drivers = drivers
        self._web: Web | None = None

    def run(self, user: str, *words: str) -> str:
        """A command of `user` that must succeed: what it prints."""
        return self.fleet.run(*words, **_identity(user))

    def try_(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of `user`, however it ends."""
        return self.fleet.try_(*words, **_identity(user))

    def json(self, *words: str) -> Any:
        """What a command prints with --json."""
        return json.loads(self._printed(*words, "--json")[0])

    def _printed(self, *words: str) -> tuple[str, str]:
        """What a command that only reads prints to stdout and stderr: run in this process, which takes less time."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--root", str(self.root), *words])
        texts = out.buffer.getvalue().decode(), err.buffer.getvalue().decode()
        assert code == 0, f"dispatcher {' '.join(words)}: {code}\n{texts[1]}"
        return texts

    def commit(self, subject: str) -> None:
        self._git("add", "--all")
        self._git("commit", "--quiet", "-m", subject)

    def _git(self, *words: str) -> None:
        author = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
        subprocess.run(["git", *author, *words], cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def found(self) -> None:
        """The workspace as it is on Monday morning."""
        shutil.copytree(HERE / "lab", self.root, dirs_exist_ok=True)
        config = self.root / "dispatcher.yaml"
        kept = json.dumps(keeping(self.notices))
        places = {"MAIL_PORT": self.mail.port, "CHAT_PORT": self.chat.port, "NOTICES": kept}
        config.write_text(string.Template(config.read_text()).substitute(places))
        (self.root / "diary").mkdir()
        (self.root / ".gitignore").write_text("run_state/\ndiary/\nsaid/\nnotices.jsonl\n")
        self._git("init", "--quiet", "--initial-branch", "main")
        self.commit("The lab")

    def start_pod(self, name: str) -> Dispatcher:
        here = _identity("lab") | {"DISPATCHER_HOST": name}
        if name in self._drivers:
            driver = self._drivers[name]
            here |= {"FAKE_NVML": str(driver.file), "LD_LIBRARY_PATH": str(driver.file.parent)}
        pod = self.fleet.start(name, *PODS[name], poll="0.5", **here)
        self.watch.begin(name, SLOTS[name], GPUS.get(name, 0), pod)
        self.pods[name] = pod.ready()
        return pod

    def set_gpus(self, host: str, *busy: int) -> None:
        """What the driver of a host says of the utilisation of its GPUs from now on, in percent."""
        lines = [f"count {len(busy)}"]
        for index, percent in enumerate(busy):
            lines += [
                f"{index} name NVIDIA H100 80GB HBM3",
                f"{index} uuid GPU-{host}-{index}",
                f"{index} memory 85520809984 629145600 0",
                f"{index} busy {percent} {percent // 2}",
            ]
        self._drivers[host].say(*lines)

    def states(self, jobs: Collection[str] | None = None) -> dict[str, int]:
        """How many of the jobs, or of all, are in which state."""
        known = self.fleet.states()
        return dict(Counter(known.get(job, "unknown") for job in (known if jobs is None else jobs)))

    def row(self, job: str) -> dict[str, Any]:
        """What `status --json` says of a job."""
        return next(row for row in self.json("status")["jobs"] if row["job"] == job)

    def pod(self, name: str) -> dict[str, Any]:
        """What `pods --json` says of a pod."""
        return next(pod for pod in self.json("pods") if pod["pod"] == name)

    def notes(self) -> list[str]:
        """What `status` notes below its tables."""
        return self._printed("status")[1].split("note: ")[1:]

    def states_of_notices(self) -> dict[str, int]:
        """What `notify --json` says of the notices."""
        return dict(Counter(row["state"] for row in self.json("notify")))

    @property
    def notices(self) -> Path:
        return self.root / "notices.jsonl"

    def arrived(self) -> dict[str, list[dict[str, Any]]]:
        """The notices that arrived at each target, as data; of a mail its subject and text."""
        mails = [{"subject": one["Subject"], "text": one.get_content()} for one in self.mail.got]
        return {"mail": mails, "chat": self.chat.got, "log": told(self.notices)}

    def told_events(self, target: str) -> list[str]:
        """The events of the notices that arrived at a target which gets them as data."""
        return [event["event"] for notice in self.arrived()[target] for event in notice["events"]]

    @property
    def web(self) -> Web:
        """grace's `dispatcher web`, which is started when it is asked for."""
        if self._web is None:
            self._web = Web(self.root, "--allow-changes")
        return self._web

    def close_web(self) -> None:
        if self._web is not None:
            self._web.end()
            self._web = None

    def close(self) -> None:
        self.watch.stop()
        self.close_web()


def _identity(user: str) -> dict[str, str]:
    return {"LOGNAME": user, "USER": user, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@contextlib.contextmanager
def lab_at(root: Path) -> Iterator[Lab]:
    """A lab whose processes end with it."""
    drivers = {}
    for host in GPUS:
        folder = root.parent / f"driver-{host}"
        folder.mkdir()
        drivers[host] = Driver(built_in(folder))
    with mail_server() as mail, hook() as chat, fleet_at(root, root.parent / "said") as fleet:
        lab = Lab(fleet, drivers, mail, chat)
        for host, count in GPUS.items():
            lab.set_gpus(host, *[90] * count)
        lab.found()
        try:
            yield lab
        finally:
            lab.close()
