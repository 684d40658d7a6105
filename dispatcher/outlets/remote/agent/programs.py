"""Running programs on this host, with a time limit, and without the variables of a scheduler's job."""

import os
import re
import signal
import subprocess
import sys
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

from dispatcher.outlets.remote.agent.names import LAUNCHERS_VARIABLE, AgentError, Data

LONGEST_OUTPUT = 16 << 20
# Membership in a job, which what runs here does not have, and options of a scheduler's programs; what tells these
# programs where their scheduler is stays, and what modules of a site set for its users.
_SCHEDULERS = re.compile(
    LAUNCHERS_VARIABLE
    + r"|(?!SBATCH_(ACCOUNT|PARTITION|QOS|WCKEY|RESERVATION)$)"
    + r"(SLURM|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SCANCEL|SCONTROL|PBS)_"
    + r"(?!(CONF|CONF_FILE|CONF_SERVER|CLUSTERS|SERVER|DEFAULT|EXEC)$).*"
)


def run(words: Data, _stdin: BinaryIO) -> Data:
    directory = words["directory"]
    status, out, err = run_program(
        words["words"], words["stdin"].encode(), scrubbed(words["environment"]), directory, words["timeout_s"]
    )
    if len(out) > LONGEST_OUTPUT:
        # What is missing from a part of an answer would be taken for what there is not.
        raise AgentError(f"{words['words'][0]} printed more than {LONGEST_OUTPUT >> 20} MiB")
    return {"exit_code": status, "out": decoded(out), "err": decoded(err[:LONGEST_OUTPUT])}


def run_program(
    words: List[str], given: bytes, environment: Dict[str, str], directory: str, timeout_s: float
) -> Tuple[Optional[int], bytes, bytes]:
    """Exit status (None: it was killed when its time was over), output and errors. It ends with this process."""
    # One that is told to stop while the program starts would leave it running.
    told: List[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    try:
        return run_session(words, given, environment, directory, timeout_s, told)
    finally:
        signal.signal(signal.SIGTERM, before)


def stop(number: int, _frame: Any) -> None:
    sys.exit(128 + number)


def run_session(
    words: List[str], given: bytes, environment: Dict[str, str], directory: str, timeout_s: float, told: List[int]
) -> Tuple[Optional[int], bytes, bytes]:
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=directory,
        start_new_session=True,
    )
    try:
        signal.signal(signal.SIGTERM, stop)
        if told:
            stop(told[0], None)
        out, err = child.communicate(given, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        return None, out, err
    except SystemExit:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    return child.returncode, out, err


def scrubbed(changes: Dict[str, Optional[str]]) -> Dict[str, str]:
    """The environment of this login without the variables of a scheduler's job, and with these changes."""
    environment = {name: value for name, value in os.environ.items() if not _SCHEDULERS.fullmatch(name)}
    if "SLURM_JOB_ID" in os.environ or "PBS_JOBID" in os.environ:
        # The directory of this job alone, which vanishes with it.
        environment.pop("TMPDIR", None)
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def decoded(output: bytes) -> str:
    return output.decode("utf-8", "replace")


def find_pbs() -> None:
    """Put PBS's programs on PATH. PBS does so in /etc/profile.d, which a command that comes by ssh does not read."""
    try:
        with open(os.environ.get("PBS_CONF_FILE") or "/etc/pbs.conf", encoding="utf-8", errors="replace") as file:
            settings = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return
    if settings.get("PBS_EXEC"):
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), settings["PBS_EXEC"] + "/bin"])
