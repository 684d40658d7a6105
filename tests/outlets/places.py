"""Places for the contract suite: a workspace, and pods that run attempts in it through one kind of outlet.

A kind of outlet says how its outlets are made, how to keep it from starting anything, and how it goes away and comes
back; everything else is the same for all.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from beds.pbs import NODES, PbsBed
from beds.slurm import SlurmBed
from beds.sshd import SshBed
from beds.tpu import VERSION, TpuBed
from beds.volcano import VolcanoBed
from fleet import PATIENCE_S, wait_until

from dispatcher.base import host
from dispatcher.config import CodeMode, Config, Method
from dispatcher.hosts.types import AnyHost, Hosts, PbsHost, PlainHost, SlurmHost, TpuHost, VolcanoHost
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Bundle, Ended, Key, Orphan, Outlet, Placement, Report, Request, Running, Slot
from dispatcher.outlets.bundle import render
from dispatcher.outlets.context import BatchTimes, PodContext
from dispatcher.outlets.kinds import make_outlets
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import processes
from dispatcher.outlets.volcano.manifest import CONTAINER, JOB_ID
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import AttemptPaths, Layout

POLL_S = 0.2
ON_CPU = Request(0)
# Scripts of attempts, which say so when they have begun: see Place.begun.
BEGUN = 'echo "$DISPATCHER_JOB_ID" >>begun'
LONG = f"{BEGUN}; sleep 600"
# Until all are let go, or the one of this job.
GATED = f'{BEGUN}; until [ -e go ] || [ -e "go.$DISPATCHER_JOB_ID" ]; do sleep 0.02; done; exit 3'


class Place:
    """The local outlet; other kinds derive from it."""

    kind = LOCAL
    # Where attempts run, as their placements have it.
    node_names: Sequence[str] = (host.host_name(),)
    # Whether an attempt can be pending, and the outlet out of reach.
    is_queue = False
    # How long everything may take.
    patience_s: float = PATIENCE_S
    # Whether one program does all of a submission: it goes on when its dispatcher is killed at once.
    submits_at_once = True
    # How often a host is asked.
    poll_s = POLL_S
    times = BatchTimes()
    # So many are in flight at once in one test; most outlets start some processes for each.
    many = 20

    def __init__(self, root: Path, hosts: Sequence[partial[AnyHost]] = (), working: Path | None = None) -> None:
        """`hosts` make what is configured. `working` is where attempts run, as this process finds it."""
        root.mkdir(exist_ok=True)
        self.root = root
        self.working = working or root
        self.makers = list(hosts)
        made = [make() for make in hosts]
        self.config = Config(
            layout=Layout(root),
            matrix=root / "m.json",
            methods={"m": Method(name="m", template=root / "none.py")},
            # Enough for a shell that does much on a busy machine before it passes TERM on.
            kill_grace_s=4.0,
            # So that wrappers look for `superseded` every second.
            lost_after_s=4.0,
            hosts=Hosts(hosts={one.name: one for one in made}),
            # The workspace of a test is no repository.
            code=CodeMode.NONE,
        )
        self._made: list[Outlet] = []
        self.outlet = self.restarted()
        wait_until(self.has_room, "the outlet can be used")

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Whatever is submitted does not begin."""
        raise NotImplementedError
        yield

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The outlet cannot be reached."""
        raise NotImplementedError
        yield

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """The outlet takes what it is given and never answers."""
        raise NotImplementedError
        yield

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        """Submissions work, and their answers do not arrive."""
        raise NotImplementedError
        yield

    def restarted(self, pod: str = "pod") -> Outlet:
        """The outlet of a dispatcher that has just started."""
        observer = Observer(self.config.layout, self.config.lost_after_s, lambda: True)
        hosts = self.config.hosts.hosts
        context = PodContext(
            pod=pod, config=self.config, observer=observer, log=print, cpu_slots=0 if hosts else self.many,
            submissions=dict.fromkeys(hosts, self.many), poll_interval_s=self.poll_s, times=self.times,
        )  # fmt: skip
        (made,) = make_outlets(context).values()
        self._made.append(made)
        return made

    def has_room(self) -> bool:
        self.outlet.poll([])
        return not self.outlet.capacity.is_full

    def paths(self, key: Key) -> AttemptPaths:
        return self.config.layout.attempt(key.job_id, key.number)

    def there(self, name: str) -> Path:
        """A file in the directory in which attempts run."""
        return self.working / name

    def let_go(self, job: str = "") -> None:
        """All attempts of GATED end, or the one of a job."""
        self.there(f"go.{job}" if job else "go").touch()

    def claim(self, job: str, script: str, request: Request = ON_CPU, **words: Any) -> Bundle:
        """Claim a job that runs this script, and render it; it takes a slot. `words` are further keys of its entry."""
        key = Key(job, 1)
        self.paths(key).directory.mkdir(parents=True)
        self.paths(key).claimant.write_text(f"pod\n{host.here()}\n")
        slot = self.outlet.capacity.take(request)
        assert slot is not None
        entry = Entry(job_id=job, method="m", command=("bash", "-c", script), **words)
        assigned = Assignment(entry=entry, key=key, pod="pod", request=request, slot=slot)
        return render(self.config, assigned, self.outlet.site(slot, request))

    def submit(self, job: str, script: str, **words: Any) -> Key:
        bundle = self.claim(job, script, **words)
        self.outlet.submit([bundle])
        return bundle.key

    def wait(self, keys: Sequence[Key], what: type, outlet: Outlet | None = None) -> dict[Key, Report]:
        """Poll as the loop does, woken by the outlet alone, until all of these have such a status."""
        outlet = outlet or self.outlet
        end_s = time.monotonic() + self.patience_s
        while True:
            reports = dict(outlet.poll(keys))
            assert set(reports) == set(keys)
            if all(isinstance(report.status, what) for report in reports.values()):
                return reports
            assert time.monotonic() < end_s, f"not {what.__name__} within {self.patience_s:g} s: {reports}"
            due_s = outlet.due_in_s()
            select.select(outlet.wait_fds(), [], [], PATIENCE_S if due_s is None else due_s)

    def end(self, key: Key, outlet: Outlet | None = None) -> Ended:
        status = self.wait([key], Ended, outlet)[key].status
        assert isinstance(status, Ended)
        return status

    def begun(self) -> list[str]:
        """One line for each attempt that has begun: its job, where it runs one of the scripts above."""
        with contextlib.suppress(FileNotFoundError):
            return self.there("begun").read_text().splitlines()
        return []

    def wait_begun(self, *keys: Key) -> None:
        """Until these attempts run and have said so."""
        self.wait(keys, Running)
        wait_until(lambda: {key.job_id for key in keys} <= set(self.begun()), f"{keys} have begun")

    def orphan(self, key: Key, *, is_unwanted: bool = False, **placement: Any) -> Orphan:
        placement.setdefault("host", host.host_name())
        return Orphan(key=key, pod="pod", placement=Placement(**placement), is_unwanted=is_unwanted)

    def recover(self, outlet: Outlet, orphan: Orphan) -> Ended:
        """What another pod finds in the end."""
        return self.recover_all(outlet, orphan)[orphan.key]

    def recover_all(self, outlet: Outlet, *orphans: Orphan) -> dict[Key, Ended]:
        found: dict[Key, Ended] = {}

        def all_ended() -> bool:
            statuses = {key: report.status for key, report in outlet.recover(orphans).items()}
            found.update({key: status for key, status in statuses.items() if isinstance(status, Ended)})
            return len(found) == len(orphans)

        wait_until(all_ended, "the ends of the orphans are found", self.patience_s)
        return found

    def run_wrapper(self, bundle: Bundle) -> subprocess.CompletedProcess[str]:
        """Start the wrapper of an attempt by hand, as an outlet does, where attempts run."""
        words = ["bash", f"{self.directory(bundle.key)}/job.sh", "none"]
        environment = {name: value for name, value in bundle.environment.items() if value is not None}
        return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)

    def is_gone(self, key: Key) -> bool:
        """Whether no process of the attempt is left."""
        return not processes.of_attempt(Path(self.directory(key)))

    def directory(self, key: Key) -> str:
        """The attempt's directory as it sees it."""
        return os.fspath(self.outlet.site(Slot(), Request(0)).layout.attempt(key.job_id, key.number).directory)

    def close(self) -> None:
        for directory in self.config.layout.jobs_dir.glob("*/*"):
            for pid in processes.of_attempt(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for outlet in self._made:
            outlet.close()


class SlurmPlace(Place):
    """A cluster on whose filesystem the workspace stands; the dispatcher runs on its login node."""

    kind = "slurm"
    is_queue = True

    def __init__(self, root: Path, bed: SlurmBed) -> None:
        self.bed = bed
        self.node_names = bed.node_names
        super().__init__(root, [partial(SlurmHost, name="hpc", cluster="hpc")])

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        self.bed.run("scontrol", "update", "PartitionName=low", "State=DOWN")
        try:
            yield
        finally:
            self.bed.run("scontrol", "update", "PartitionName=low", "State=UP")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self.bed.without_controller():
            yield

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        with self.bed.hanging_controller():
            yield

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        real = shutil.which("sbatch")
        with self.programs(sbatch=f'{real} "$@" >/dev/null; echo "sbatch: error: Socket timed out" >&2; exit 1'):
            yield

    @contextlib.contextmanager
    def programs(self, **scripts: str) -> Iterator[None]:
        """These take the place of programs of the same names."""
        directory = self.root.parent / "shims"
        directory.mkdir(exist_ok=True)
        before = os.environ["PATH"]
        for name, text in scripts.items():
            (directory / name).write_text(f"#!/bin/bash\n{text}\n")
            (directory / name).chmod(0o755)
        os.environ["PATH"] = f"{directory}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before
            shutil.rmtree(directory)


class PbsPlace(Place):
    """A cluster with PBS on whose filesystem the workspace stands; the dispatcher runs on its login node."""

    kind = "pbs"
    is_queue = True

    def __init__(
        self, root: Path, bed: PbsBed, working: Path | None = None, times: BatchTimes = Place.times, **settings: Any
    ) -> None:
        self.bed = bed
        self.times = times
        self.node_names = list(NODES)
        super().__init__(root, [partial(PbsHost, name="hpc", cluster="hpc", **settings)], working)

    def is_stopped(self, key: Key) -> bool:
        """Whether every process of the attempt is suspended."""
        states = set()
        for pid in processes.of_attempt(Path(self.directory(key))):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                states.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        return states == {"T"}

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        self.bed.stop_queue()
        try:
            yield
        finally:
            self.bed.start_queue()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self.bed.without_server():
            yield

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        with self.bed.hanging():
            yield

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        self.bed.configure(lossy=True)
        try:
            yield
        finally:
            self.bed.configure(lossy=False)


class PlainPlace(Place):
    """A host that is reached by ssh and does not see the workspace."""

    kind = "plain"

    def __init__(self, root: Path, bed: SshBed) -> None:
        self.bed = bed
        super().__init__(root, [partial(PlainHost, name="h1", cluster="h1", ssh="h1")])
        self.node_names = ["h1"]
        self.working = bed["h1"].path(self.outlet.site(Slot(), Request(0)).layout.root)
        self.working.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self.bed["h1"].away():
            yield

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        with self.bed["h1"].hanging():
            yield

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        """The client of ssh is killed when the command has run, and prints nothing."""
        directory = self.root.parent / "shims"
        directory.mkdir()
        real = shutil.which("ssh")
        (directory / "ssh").write_text(f'#!/bin/bash\n{real} "$@" >/dev/null\nexit 255\n')
        (directory / "ssh").chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{directory}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before

    def run_wrapper(self, bundle: Bundle) -> subprocess.CompletedProcess[str]:
        settings = [f"{name}={value}" for name, value in bundle.environment.items() if value is not None]
        words = ["env", *settings, "bash", f"{self.directory(bundle.key)}/job.sh", "none"]
        return self.bed.ssh("h1", shlex.join(words))


class TpuPlace(Place):
    """A Cloud TPU VM with one worker, which somebody has created."""

    kind = "tpu"
    # Each call is a run of gcloud.
    poll_s = 1.0
    patience_s = 3 * PATIENCE_S
    # They go by one call; how many a host behind ssh takes is seen with the plain one.
    many = 30
    # A launch takes several programs: one that dies with the first of them has launched nothing.
    submits_at_once = False

    def __init__(self, root: Path, bed: TpuBed) -> None:
        self.bed = bed
        (worker,) = bed.create("vm")
        self.worker = worker
        settings = {"cluster": "vm", "zone": bed.zone, "accelerator_type": "v4-8", "version": VERSION}
        super().__init__(root, [partial(TpuHost, name="vm", **settings)])
        self.node_names = [worker.name]
        self.working = worker.path(self.outlet.site(Slot(), Request(0)).layout.root)
        self.working.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self.worker.stop_sshd()
        try:
            yield
        finally:
            self.worker.start_sshd()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        with self.worker.hanging():
            yield

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        """What a worker has answered is lost; gcloud keeps it in a file of its directory."""
        directory = self.root.parent / "shims"
        directory.mkdir()
        real = shutil.which("gcloud")
        forget = r"[[ $* != *tpu-vm\ ssh* ]] || { rm -f None/*.log; exit 1; }"
        (directory / "gcloud").write_text(f'#!/bin/bash\n{real} "$@"\nstatus=$?\n{forget}\nexit $status\n')
        (directory / "gcloud").chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{directory}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before

    def run_wrapper(self, bundle: Bundle) -> subprocess.CompletedProcess[str]:
        settings = [f"{name}={value}" for name, value in bundle.environment.items() if value is not None]
        command = shlex.join(["env", *settings, "bash", f"{self.directory(bundle.key)}/job.sh", "none"])
        return self.bed.gcloud("ssh", "vm", f"--command={command}")


class VolcanoPlace(Place):
    """A namespace of Kubernetes with Volcano, and a volume that its pods mount."""

    kind = "volcano"
    is_queue = True
    # Each is a Kubernetes pod, which takes its time of processors to begin and to end.
    many = 10
    patience_s = 5 * PATIENCE_S
    # Files are delivered by one program, and the Job is made by another.
    submits_at_once = False
    # Each call is a `kubectl exec` and a `kubectl get`.
    poll_s = 1.0

    def __init__(self, root: Path, bed: VolcanoBed) -> None:
        self.bed = bed
        self.node_names = bed.node_names
        volume, mount = Path(bed.make_volume("data")), "/data"
        settings = {"namespace": bed.namespace, "kubeconfig": str(bed.kubeconfig), "image": "jax"}
        settings |= {"pvc_name": "data", "pvc_mount_path": mount}
        super().__init__(root, [partial(VolcanoHost, name="k", cluster="k", **settings)])
        self.working = volume / self.outlet.site(Slot(), Request(0)).layout.root.relative_to(mount)
        self.working.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        with self.bed.paused("scheduler"):
            yield

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        with self.bed.answering(503):
            yield

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        directory = self.root.parent / "shims"
        directory.mkdir()
        (directory / "kubectl").write_text("#!/bin/bash\nexec sleep 600\n")
        (directory / "kubectl").chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{directory}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        with self.bed.losing_answers(method="POST", path="batch.volcano.sh/.*/jobs"):
            yield

    def run_wrapper(self, bundle: Bundle) -> subprocess.CompletedProcess[str]:
        """In the attempt's own Kubernetes pod."""
        (pod,) = [
            pod["metadata"]["name"]
            for pod in self.bed.api.get(f"/api/v1/namespaces/{self.bed.namespace}/pods")["items"]
            if pod["metadata"].get("annotations", {}).get(JOB_ID) == bundle.key.job_id
        ]
        settings = [f"{name}={value}" for name, value in bundle.environment.items() if value is not None]
        words = ["env", *settings, "bash", f"{self.directory(bundle.key)}/job.sh", "none"]
        options = [f"--kubeconfig={self.bed.kubeconfig}", f"--namespace={self.bed.namespace}"]
        command = ["kubectl", *options, "exec", pod, f"--container={CONTAINER}", "--", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)
