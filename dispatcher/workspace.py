"""Where the workspace is, and all paths in it. No other module joins paths."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from dispatcher import contract
from dispatcher.base.files import PASSING
from dispatcher.base.messages import is_utf8, readable
from dispatcher.errors import UsageError

# Labs' own scripts use this name, too.
STATUS_FILE: Final = "matrix_status.json"
_MARKS_TEXT: Final = "dispatcher.yaml, matrix/matrix.json or run_state/journal/"
_ADVICE: Final = (
    "`dispatcher init DIR` creates a workspace with an example; an empty dispatcher.yaml makes a directory one"
)


# Of one machine of an attempt that ran on several.
_LOG: Final = re.compile(r"{}(?:\.(\d+))?\.{}".format(*contract.LOG_FILE.split(".")))
# Longer names are not attempt numbers.
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def attempt_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of attempts among the names in the directory of a job, the newest first."""
    return sorted((int(name) for name in names if _NUMBER.fullmatch(name)), reverse=True)


def log_name(worker: int) -> str:
    """The name of a machine's log in the directory of an attempt that ran on several: `output.1.log`."""
    stem, _, ending = contract.LOG_FILE.rpartition(".")
    return f"{stem}.{worker}.{ending}" if worker else contract.LOG_FILE


@dataclass(frozen=True)
class AttemptPaths:
    """The files in the directory of one attempt, the contract between dispatcher and job."""

    directory: Path

    @cached_property
    def entry(self) -> Path:
        return self.directory / contract.ENTRY_FILE

    @cached_property
    def wrapper(self) -> Path:
        return self.directory / contract.WRAPPER_FILE

    @cached_property
    def setup(self) -> Path:
        """The shell lines that run before the command, if the method has any."""
        return self.directory / contract.SETUP_FILE

    @cached_property
    def slot(self) -> Path:
        """What was counted for the attempt of its host and its GPU; missing where that is nothing."""
        return self.directory / contract.SLOT_FILE

    @cached_property
    def cgroup(self) -> Path:
        """The path of the cgroup that the job runs in; missing where it has none of its own."""
        return self.directory / contract.CGROUP_FILE

    @cached_property
    def log(self) -> Path:
        return self.directory / contract.LOG_FILE

    def log_of(self, worker: int) -> Path:
        """The log of one machine of an attempt that ran on several: of all but the first its end, once it has ended."""
        return self.directory / log_name(worker)

    def logged_ranks(self) -> list[int]:
        """The machines whose logs are here, of an attempt that has begun to write one."""
        matches = (_LOG.fullmatch(path.name) for path in self.directory.glob("*"))
        return sorted(int(found[1] or 0) for found in matches if found)

    @cached_property
    def progress(self) -> Path:
        return self.directory / contract.PROGRESS_FILE

    @cached_property
    def metrics(self) -> Path:
        return self.directory / contract.METRICS_FILE

    @cached_property
    def checkpoint(self) -> Path:
        return self.directory / contract.CHECKPOINT_FILE

    @cached_property
    def result(self) -> Path:
        return self.directory / contract.RESULT_FILE

    @cached_property
    def run(self) -> Path:
        """What the bootstrap of a job class says of its run: an id, the devices, a heartbeat."""
        return self.directory / contract.RUN_FILE

    @cached_property
    def provenance(self) -> Path:
        """What the attempt ran from: code, interpreter, packages, host."""
        return self.directory / contract.PROVENANCE_FILE

    @cached_property
    def provenance_host(self) -> Path:
        """What of it the host has told where the attempt ran, if that is another one than its pod's."""
        return self.directory / contract.PROVENANCE_HOST_FILE

    @cached_property
    def gpu_use(self) -> Path:
        """For how long it has left its GPUs idle, told where it runs."""
        return self.directory / contract.GPU_USE_FILE

    @cached_property
    def exit(self) -> Path:
        return self.directory / contract.EXIT_FILE

    @cached_property
    def cleaned(self) -> Path:
        """When `dispatcher clean` removed the log and the job's own files."""
        return self.directory / contract.CLEANED_FILE

    @cached_property
    def alive(self) -> Path:
        return self.directory / contract.ALIVE_FILE

    @cached_property
    def superseded(self) -> Path:
        return self.directory / contract.SUPERSEDED_FILE

    @cached_property
    def taken(self) -> Path:
        """The host and the pid of the wrapper that has begun to run the attempt."""
        return self.directory / contract.TAKEN_FILE

    @cached_property
    def stop(self) -> Path:
        """Why the attempt is being stopped; the wrapper copies it into `exit.json`."""
        return self.directory / contract.STOP_FILE

    @cached_property
    def submission(self) -> Path:
        """Under which name an outlet submits the attempt, written before it does."""
        return self.directory / contract.SUBMISSION_FILE

    @cached_property
    def code(self) -> Path:
        """The shipped code that the attempt runs, where it does not run in the workspace."""
        return self.directory / contract.CODE_FILE

    @cached_property
    def claimant(self) -> Path:
        """The pod that created the directory, its host, boot and PID namespace. The same file is the liveness lock."""
        return self.alive


class Layout:
    """The paths of the workspace at `root`. `status_file` overrides the default path of the status file."""

    def __init__(self, root: str | os.PathLike[str], status_file: Path | None = None) -> None:
        self.root = Path(root).absolute()
        self.config_file = self.root / "dispatcher.yaml"
        self.matrix_dir = self.root / "matrix"
        # The jobs of `dispatcher submit -- COMMAND` and `dispatcher job submit`: matrix/submitted.py.
        self.submitted_manifest = self.matrix_dir / "submitted.jsonl"
        self.default_matrix = self.matrix_dir / "matrix.json"
        self.templates_dir = self.root / "templates"
        self.scripts_dir = self.root / "scripts"
        self.run_state = self.root / "run_state"
        self.status_file = status_file or self.run_state / STATUS_FILE
        # What the status file of a lab's own script was when it was adopted.
        self.adopted_file = self.run_state / f"adopted_{STATUS_FILE}"
        self.run_state_ignored = self.run_state / ".gitignore"
        self.lock_file = self.run_state / "claims.lock"
        self.hardlink_lock_file = self.run_state / "claims.hardlink"
        self.journal_dir = self.run_state / "journal"
        self.saved_fold = self.journal_dir / "fold.saved"
        self.saved_entries = self.run_state / "matrix.saved"
        self.saved_submitted = self.run_state / "submitted.saved"
        self.pods_dir = self.run_state / "pods"
        self.jobs_dir = self.run_state / "jobs"
        self._jobs = str(self.jobs_dir)
        # Files that wait to be moved into the directories of attempts: below jobs/, which may be on another disk.
        self.prepared_dir = self.jobs_dir / ".prepared"
        self.rejected_dir = self.run_state / "rejected"
        # Twelve hexadecimal digits by which schedulers tell this workspace's jobs from others.
        self.id_file = self.run_state / "workspace.id"
        # The projects of Google Cloud in which TPU VMs were created, one a line.
        self.tpu_projects = self.run_state / "tpu_projects"
        # What is submitted to schedulers, by the submission's name.
        self.submissions_dir = self.run_state / "submissions"
        # Archives of the code, by the digest of their content, and what they were made from.
        self.code_dir = self.run_state / "code"
        # Differences of the code and lists of packages, by the digest of their content: what attempts share.
        self.provenance_dir = self.run_state / "provenance"
        # Where `dispatcher doctor` on several hosts meet.
        self.doctor_dir = self.run_state / "doctor"

    @classmethod
    def of_attempt(cls, directory: str) -> Layout:
        """The layout to which an attempt's directory belongs."""
        return cls(Path(directory).parents[3])

    def mark(self) -> Path | None:
        """What makes the directory a workspace: the first of its settings, its manifest and its journal that exists."""
        paths = (self.config_file, self.default_matrix, self.journal_dir)
        return next((path for path in paths if _may_exist(path)), None)

    def manifests(self) -> list[Path]:
        """The files in matrix/ that may be manifests, without a status file that a lab keeps there."""
        found = sorted(self.matrix_dir.glob("*.json"))
        return [path for path in found if path.name != STATUS_FILE and path != self.status_file]

    def journal(self, generation: int) -> Path:
        return self.journal_dir / f"{generation:06d}.jsonl"

    def pod_lock(self, pod: str) -> Path:
        return self.pods_dir / f"{pod}.lock"

    def pod_file(self, pod: str) -> Path:
        return self.pods_dir / f"{pod}.json"

    def pod_gpus(self, pod: str) -> Path:
        """The last hour of its GPUs."""
        return self.pods_dir / f"{pod}.gpus"

    def pod_drain(self, pod: str) -> Path:
        """Exists while the pod is asked to drain."""
        return self.pods_dir / f"{pod}.drain"

    def pod_probe(self, pod: str, host: str) -> Path:
        """Read on a host to find out whether it sees this workspace."""
        return self.pods_dir / f".{pod}.{host}.probe"

    def job_dir(self, job_id: str) -> Path:
        return self.jobs_dir / job_id

    def attempt(self, job_id: str, attempt: int) -> AttemptPaths:
        return _attempt(self.jobs_dir, job_id, attempt)

    def result_file(self, job_id: str, attempt: int) -> str:
        """The result of an attempt, for those who read 100,000 of them: to make a Path takes longer than to read."""
        return f"{self._jobs}/{job_id}/{attempt}/{contract.RESULT_FILE}"

    def submission_script(self, name: str) -> Path:
        """The batch script of a submission; what its own shell prints stands beside it."""
        return self.submissions_dir / name / "submit.sh"

    def code_archive(self, digest: str) -> Path:
        """The archive of a snapshot of the code."""
        return self.code_dir / f"{digest}.tar"

    def code_copy(self, digest: str) -> Path:
        """The files of an archive, read-only, complete or absent: where attempts of a job with `snapshot` run."""
        return self.code_dir / digest

    def kept_code(self, label: str) -> Path:
        """Says which archive a record's `snapshot` means."""
        return self.code_dir / f"{label.replace(' ', '-')}.kept"

    def code_key(self, key: str) -> Path:
        """Which archive was made of what this key stands for."""
        return self.code_dir / f"{key}.json"

    def provenance_diff(self, digest: str) -> Path:
        """The uncommitted changes of an attempt's code, as git shows them."""
        return self.provenance_dir / "diffs" / f"{digest}.patch"

    def provenance_packages(self, digest: str) -> Path:
        """The packages of an attempt's Python, one line each."""
        return self.provenance_dir / "packages" / f"{digest}.txt"

    def method_scripts(self, method: str) -> Path:
        """The directory of the rendered training scripts of a method, e.g. `run_state/fft_scripts/`."""
        return self.run_state / f"{method}_scripts"

    def training_template(self, method: str) -> Path:
        """The default path of a method's template."""
        return self.templates_dir / f"train_{method}.py"


def nearest_workspace(start: Path) -> Layout | None:
    """The workspace in `start` or in the nearest directory above it; None outside of one.

    As with git, the search ends at the edge of the filesystem.
    """
    try:
        device = os.stat(start).st_dev
        for place in (start, *start.parents):
            layout = Layout(place)
            found, mark = os.stat(place), layout.mark()
            if found.st_dev != device:
                return None
            if mark is not None and not (place != start and _may_be_planted(mark, found)):
                return layout
    except OSError:
        # A directory above cannot be read.
        return None
    return None


def find_workspace() -> Layout:
    """The workspace of `$DISPATCHER_ROOT`, else the nearest one from the current directory upwards.

    Raises UsageError when there is none.
    """
    named = os.environ.get(contract.ROOT)
    if named:
        return named_workspace(named, f"${contract.ROOT}: ")
    try:
        here = Path.cwd()
    except OSError as error:
        raise UsageError(f"the current directory cannot be found: {error.strerror}") from None
    found = nearest_workspace(here)
    if found is None:
        raise UsageError(
            f"not in a workspace: neither {here} nor a directory above it has {_MARKS_TEXT}. Change to the workspace, "
            f"or name it with --root DIR. {_ADVICE}"
        )
    return usable_layout(found.root)


def named_workspace(root: str | os.PathLike[str], named_by: str = "") -> Layout:
    """The workspace at `root`; UsageError when there is none, which begins with `named_by`."""
    layout = usable_layout(root, named_by)
    if layout.mark() is None:
        raise UsageError(f"{named_by}{layout.root} is not a workspace: it has no {_MARKS_TEXT}. {_ADVICE}")
    return layout


def usable_layout(root: str | os.PathLike[str], named_by: str = "") -> Layout:
    """The layout at `root`, which may not be a workspace yet; UsageError, which begins with `named_by`, for a bad path.

    The files of the run state are UTF-8 and hold the paths of attempts.
    """
    layout = Layout(root)
    path = os.fspath(layout.root)
    if not is_utf8(path):
        raise UsageError(
            f"{named_by}the path {readable(path)} is not UTF-8, so no workspace can be there: "
            "rename the directory (mv), or choose another one"
        )
    return layout


def _may_be_planted(mark: Path, directory: os.stat_result) -> bool:
    """Whether `mark` is a stranger's in a directory such as /tmp, above which everybody's directories may be.

    The settings and the manifest of a workspace have commands.
    """
    is_like_tmp = directory.st_mode & stat.S_ISVTX and directory.st_mode & stat.S_IWOTH
    return bool(is_like_tmp) and os.stat(mark).st_uid not in (os.geteuid(), directory.st_uid)


# An attempt's start and end ask for its paths a dozen times, and joining them costs more than the files do.
@lru_cache(maxsize=256)
def _attempt(jobs_dir: Path, job_id: str, attempt: int) -> AttemptPaths:
    return AttemptPaths(Path(f"{jobs_dir}/{job_id}/{attempt}"))


def _may_exist(path: Path) -> bool:
    """Whether there is such a file, or storage that is in trouble does not tell: its error is no proof of absence."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno in PASSING
    return True
