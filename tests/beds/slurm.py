"""A private SLURM on this machine: controller, nodes, two partitions, and accounting where asked for.

    with SlurmBed(SlurmSettings(min_job_age_s=5)) as slurm:
        job = slurm.submit("#!/bin/sh\nexit 3")
        slurm.wait_for(job, "FAILED")

Commands of SLURM run anywhere on this machine with `slurm.env` in their environment. Daemons and jobs run in a
namespace of their own and end with the bed. Partition `low` can be preempted by partition `high`.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ports import Ports

from .bed import BedError, plain_directory, wait_for
from .namespace import Daemon, Namespace, accepts, tail
from .needs import SEARCH_PATH, why_not

# Any account without rights.
ORDINARY = "nobody"
DATABASE_TABLES = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
GRANTS = "CREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm';\nGRANT ALL ON *.* TO 'slurm'@'localhost';\n" \
    "CREATE USER 'slurm'@'%' IDENTIFIED BY 'slurm';\nGRANT ALL ON *.* TO 'slurm'@'%';\nFLUSH PRIVILEGES;\n"  # fmt: skip
CONF = """\
ClusterName={settings.cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge/sock,cred_expire={settings.cred_expire_s}
SlurmctldPort={ports[slurmctld]}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
MailProg=/bin/true
MinJobAge={settings.min_job_age_s}
MaxArraySize={settings.max_array_size}
SlurmdTimeout={settings.slurmd_timeout_s}
KillWait={settings.kill_wait_s}
InactiveLimit=0
Waittime=0
BatchStartTimeout=10
MessageTimeout={settings.message_timeout_s}
OverTimeLimit=0
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PriorityType=priority/basic
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode={settings.preempt_mode}
GresTypes=gpu
{accounting}
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=60 State=UP PriorityTier=1 DefMemPerCPU=100 \
GraceTime={settings.grace_s} PreemptMode={settings.preempt_mode}
PartitionName=high Nodes=ALL MaxTime=1-00:00:00 DefaultTime=60 State=UP PriorityTier=10 DefMemPerCPU=100 PreemptMode=OFF
{settings.lines}
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass={directory}/munge/sock
AccountingStoragePort={ports[slurmdbd]}
"""
DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge/sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports[slurmdbd]}
SlurmUser=root
LogFile={directory}/log/slurmdbd.log
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[mariadbd]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""


@dataclass(frozen=True)
class SlurmSettings:
    """`preempt_mode` is REQUEUE or CANCEL; `lines` are more lines for slurm.conf. The rest as slurm.conf(5) has it."""

    cluster: str = "lab"
    nodes: int = 2
    cpus: int = 4
    gpus: int = 4
    accounting: bool = False
    preempt_mode: str = "REQUEUE"
    grace_s: int = 0
    min_job_age_s: int = 300
    kill_wait_s: int = 1
    max_array_size: int = 1001
    slurmd_timeout_s: int = 10
    message_timeout_s: int = 10
    # How long a requeued job waits; below 5 s it is 120 s.
    cred_expire_s: int = 5
    lines: str = ""


class SlurmBed:
    """A context manager."""

    def __init__(self, settings: SlurmSettings | None = None) -> None:
        self.settings = settings or SlurmSettings()
        if reason := why_not("slurm-accounting" if self.settings.accounting else "slurm"):
            raise BedError(reason)
        self.node_names = [f"n{index}" for index in range(1, self.settings.nodes + 1)]
        # Neither in pytest's directory, which other users may not enter, nor deep: socket paths end at 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-", dir=plain_directory()))
        self.conf = self.directory / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.conf)}
        self._namespace: Namespace | None = None
        self._controller: Daemon | None = None
        self._nodes: dict[str, Daemon] = {}
        self._ports = Ports()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._port = {name: self._ports.take() for name in ("slurmctld", "slurmdbd", "mariadbd", *self.node_names)}
            self._make_directories()
            self._write_conf()
            self._namespace = Namespace(mounts=_own_locks(), env=self.env)
            self._start_munge()
            if self.settings.accounting:
                self._start_accounting()
            self.start_controller()
            for name in self.node_names:
                self.start_node(name)
            self.wait_for_nodes()
            undo.pop_all()

    def __enter__(self) -> SlurmBed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything, jobs included."""
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None
        self._ports.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Commands.

    def command(self, *argv: str, user: str | None = None) -> list[str]:
        """The words that run a command as another user."""
        if user is None:
            return list(argv)
        return ["setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups", "--", *argv]

    def run(
        self, *argv: str, user: str | None = None, input: str | None = None, cwd: Path | None = None,
        check: bool = True, timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command of SLURM with captured text."""
        done = subprocess.run(
            self.command(*argv, user=user), env={**os.environ, **self.env, "PATH": SEARCH_PATH}, input=input,
            cwd=cwd or self.directory / "work", capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise BedError(f"{' '.join(argv)}: exit status {done.returncode}: {(done.stdout + done.stderr).strip()}")
        return done

    def submit(self, script: str, *options: str, user: str | None = None) -> str:
        """The id of a batch job; its output goes to `work/slurm-ID.out` of the bed's directory."""
        printed = self.run("sbatch", "--parsable", *options, input=script, user=user).stdout
        return printed.strip().partition(";")[0]

    def show(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says, by key; nothing when it does not know the job any more."""
        done = self.run("scontrol", "show", "job", "-o", job, check=False)
        if done.returncode != 0:
            return {}
        line = done.stdout.splitlines()[0]
        return dict(word.partition("=")[::2] for word in line.split() if "=" in word)

    def wait_for(self, job: str, state: str, limit_s: float = 30) -> dict[str, str]:
        """What `show` says as soon as the job is in this state."""

        def said() -> str:
            return f"job {job} to be {state}: {self.show(job)}"

        wait_for(lambda: self.show(job).get("JobState") == state, said, limit_s=limit_s, every_s=0.05)
        return self.show(job)

    def processes(self, name: str | None = None) -> list[int]:
        """Pids of what runs in the bed, as this process sees them: daemons, step daemons and jobs."""
        assert self._namespace is not None
        return self._namespace.processes(name)

    def kill(self, pids: Sequence[int]) -> None:
        """Kill processes of the bed outright."""
        assert self._namespace is not None
        self._namespace.kill(pids)

    # The controller.

    def start_controller(self) -> None:
        self._controller = self._start("slurmctld", "-D", "-i", log="slurmctld.out")
        wait_for(self._answers, lambda: f"slurmctld does not answer:\n{self.log('slurmctld.log')}")

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        """Jobs go on. With SIGKILL, what it had not written to its state is gone, as after a crash."""
        assert self._controller is not None
        self._controller.end(number)

    def restart_controller(self, number: int = signal.SIGTERM) -> None:
        self.stop_controller(number)
        self.start_controller()

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        self.stop_controller()
        try:
            yield
        finally:
            self.start_controller()

    @contextlib.contextmanager
    def hanging_controller(self) -> Iterator[None]:
        """It takes connections and says nothing."""
        assert self._controller is not None
        assert self._namespace is not None
        self._namespace.kill([self._controller.pid], signal.SIGSTOP)
        try:
            yield
        finally:
            self._namespace.kill([self._controller.pid], signal.SIGCONT)

    def _answers(self) -> bool:
        return (
            accepts(self._port["slurmctld"]) and self.run("scontrol", "ping", check=False, timeout_s=20).returncode == 0
        )

    # Nodes.

    def start_node(self, name: str) -> None:
        self._nodes[name] = self._start("slurmd", "-D", "-N", name, log=f"slurmd-{name}.out")

    def stop_node(self, name: str, number: int = signal.SIGKILL) -> None:
        """End its slurmd only: steps and jobs on it go on, as on a node that lost its network."""
        self._nodes[name].end(number)

    def power_cut(self, name: str) -> None:
        """End all that runs on a node at once."""
        self._nodes[name].end(signal.SIGKILL)
        spool = str(self.directory / "spool" / name)
        steps = [pid for pid in self.processes("slurmstepd") if _reads(f"/proc/{pid}/cwd").startswith(spool)]
        jobs = [pid for pid in self.processes() if _environment(pid).get("SLURMD_NODENAME") == name]
        self.kill([*steps, *jobs])

    def resume_nodes(self) -> None:
        """What an administrator does with nodes that SLURM has set aside, such as after a step that was killed."""
        for line in self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%N %T", check=False).stdout.splitlines():
            name, state = line.split()
            if state.startswith(("down", "drain")):
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)

    def wait_for_nodes(self, limit_s: float = 30) -> None:
        def are_up() -> bool:
            found = self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%t", check=False, timeout_s=20).stdout.split()
            return len(found) == len(self.node_names) and set(found) <= {"idle", "mix", "alloc"}

        wait_for(
            are_up, lambda: f"the nodes are not up:\n{self.run('sinfo', '-N').stdout}", limit_s=limit_s, every_s=0.05
        )

    def log(self, name: str) -> str:
        return tail(self.directory / "log" / name)

    # Coming up.

    def _start(self, program: str, *options: str, log: str) -> Daemon:
        assert self._namespace is not None
        path = shutil.which(program, path=SEARCH_PATH) or program
        return self._namespace.start(path, *options, log=self.directory / "log" / log)

    def _make_directories(self) -> None:
        os.chmod(self.directory, 0o755)
        for name in ("state", "spool", "log", "dev", "munge", "work"):
            (self.directory / name).mkdir(0o755)
        for name in self.node_names:
            (self.directory / "spool" / name).mkdir(0o755)
        # Everybody's, with the sticky bit, as /tmp.
        os.chmod(self.directory / "work", 0o1777)
        for index in range(self.settings.gpus):
            # Only the names matter: each is another /dev/null.
            os.mknod(self.directory / "dev" / f"gpu{index}", 0o020666, os.makedev(1, 3))

    def _write_conf(self) -> None:
        host = os.uname().nodename.partition(".")[0]
        gpus = self.settings.gpus
        hardware = f"CPUs={self.settings.cpus} RealMemory=4000{f' Gres=gpu:h100:{gpus}' if gpus else ''}"
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={self._port[name]} {hardware}"
            for name in self.node_names
        )
        values = {"host": host, "directory": self.directory, "ports": self._port}
        accounting = ACCOUNTING.format(**values) if self.settings.accounting else ""
        self.conf.write_text(CONF.format(settings=self.settings, nodes=nodes, accounting=accounting, **values))
        names = ",".join(self.node_names)
        device = f"NodeName={names} Name=gpu Type=h100 File={self.directory}/dev/gpu[0-{gpus - 1}]\n" if gpus else ""
        (self.directory / "gres.conf").write_text(f"AutoDetect=off\n{device}")
        (self.directory / "cgroup.conf").write_text("CgroupAutomount=no\n")
        dbd = self.directory / "slurmdbd.conf"
        dbd.write_text(DBD_CONF.format(**values))
        dbd.chmod(0o600)

    def _start_munge(self) -> None:
        folder = self.directory / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        files = [f"--{kind}-file={folder}/{kind}" for kind in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={folder}/sock", *files, "--num-threads=2",
                    log="munged.out")  # fmt: skip
        wait_for((folder / "sock").exists, lambda: f"munged: {self.log('munged.out')}", every_s=0.005)

    def _start_accounting(self) -> None:
        data = self.directory / "mysql"
        (data / "mysql").mkdir(parents=True)
        common = ["--no-defaults", "--user=root", f"--datadir={data}", "--innodb-log-file-size=8M"]
        tables = [Path(f"/usr/share/mysql/{name}.sql").read_text() for name in DATABASE_TABLES]
        subprocess.run(
            [shutil.which("mariadbd", path=SEARCH_PATH) or "mariadbd", *common, "--bootstrap", "--skip-log-bin"],
            input="\n".join(["use mysql;", *tables]), text=True, capture_output=True, check=True,
        )  # fmt: skip
        grants = self.directory / "grants.sql"
        grants.write_text(GRANTS)
        self._start(
            "mariadbd", *common, f"--socket={self.directory}/mysql.sock", "--bind-address=127.0.0.1",
            f"--port={self._port['mariadbd']}", f"--init-file={grants}", "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900",
            f"--pid-file={self.directory}/mariadbd.pid", log="mariadbd.out",
        )  # fmt: skip
        wait_for(lambda: accepts(self._port["mariadbd"]), lambda: f"mariadbd: {self.log('mariadbd.out')}")
        self._start("slurmdbd", "-D", log="slurmdbd.out")
        wait_for(lambda: accepts(self._port["slurmdbd"]), lambda: f"slurmdbd: {self.log('slurmdbd.out')}")
        wait_for(
            lambda: not self.run("sacctmgr", "-i", "add", "cluster", self.settings.cluster, check=False).returncode,
            lambda: f"slurmdbd takes no cluster: {self.log('slurmdbd.out')}", every_s=0.2,
        )  # fmt: skip


def _own_locks() -> list[str]:
    """What attempts lock in /tmp is of these nodes alone, and goes with them: a power cut leaves it there."""
    lines = []
    for uid in sorted({os.geteuid(), pwd.getpwnam(ORDINARY).pw_uid}):
        path = f"/tmp/dispatcher-{uid}"
        lines.append(f"install -d -m 700 -o {uid} {path} && mount -t tmpfs -o mode=700,uid={uid} locks {path}")
    return lines


def _group(user: str) -> str:
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


def _reads(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(word).partition("=")[::2] for word in words)
