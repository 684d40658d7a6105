"""What a rendered bootstrap (dispatcher/templates/bootstrap.py) calls: the job of one attempt, away from its workspace.

`PARAMS` of the bootstrap takes the place of the attempt's entry.json. On the directories and the batch size see
`launching`, on joining the other processes `distributed`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher import contract
from dispatcher.base.messages import counted
from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.runtime import launching, preemption
from dispatcher.runtime.run_record import RunRecord

if TYPE_CHECKING:
    from dispatcher.runtime.execution import Hardware

_log = logging.getLogger(__name__)


def main(params: Mapping[str, Any], tree: str) -> int:
    """Run the job of `params` from the project `tree`; the exit status. Unexpected errors keep their traceback."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("dispatcher").setLevel(logging.INFO)
    # An interrupt is a preemption, too: the runtime saves on a SIGTERM.
    signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        return _run(params, Path(tree))
    except DispatcherError as error:
        print(f"dispatcher: {error}", file=sys.stderr)
        return error.exit_code


def check_devices(asked: Mapping[str, Any], hardware: Hardware) -> None:
    """ConfigError when fewer accelerators are visible than were asked for; another chip is only a warning."""
    count = asked.get("gpus")
    if not count:
        return
    chip = asked.get("chip") or "GPU"
    found = 0 if hardware.platform == "cpu" else hardware.devices
    if found < count:
        seen = counted(hardware.devices, f"{hardware.chip} device")
        hints = [
            f"{name} is {os.environ.get(name, 'not set')!r}"
            for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "JAX_PLATFORMS")
            if name in os.environ or name.startswith("CUDA")
        ]
        raise ConfigError(
            f"asked for {count} x {chip}, but JAX sees {seen} in {counted(hardware.processes, 'process', 'processes')}"
            f" ({hardware.host}; {', '.join(hints)}): is JAX installed for this hardware (`jax[cuda12]`), and were the "
            "devices given to the job (`nvidia-smi`)?"
        )
    if chip != "GPU" and _letters(chip) not in _letters(hardware.chip):
        _log.warning("asked for %s; the devices are %s", chip, hardware.chip)


def _run(params: Mapping[str, Any], tree: Path) -> int:
    _check_identity(params["identity"], os.environ)
    # Relative paths of a job mean files of the project.
    os.chdir(tree)
    hardware = params["hardware"]
    chosen = launching.places(hardware, os.environ, Path(os.environ.get(contract.ROOT) or tree))
    with _recorded(params["entry"], chosen) as record:

        def check(found: Hardware) -> None:
            if record is not None:
                record.update(
                    platform=found.platform, chip=found.chip, devices=found.devices, processes=found.processes
                )
            check_devices(hardware, found)

        where = f"{params['entry']['job_id']} ({contract.BOOTSTRAP_FILE})"
        return launching.call(launching.entry_job(params["entry"], tree, chosen, where=where, check=check))


@contextlib.contextmanager
def _recorded(entry: Mapping[str, Any], chosen: Mapping[str, str]) -> Iterator[RunRecord | None]:
    """Keep run.json in the block, on process 0 only: in the attempt's directory, by hand below the root."""
    from dispatcher.runtime import distributed

    group = distributed.detect(os.environ)
    if group is not None and group.process_id:
        yield None
        return
    directory = contract.attempt_dir()
    if directory is None:
        directory = Path(chosen["root"]) / launching.OUTPUT / "by-hand" / entry["job_id"]
        directory.mkdir(parents=True, exist_ok=True)
    code = {"commit": os.environ.get(contract.CODE_COMMIT), "digest": os.environ.get(contract.CODE_DIGEST)}
    with RunRecord(directory / contract.RUN_FILE, code) as record, preemption.notifying(record.preempt):
        yield record


def _check_identity(identity: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """ConfigError when the environment is that of another attempt: it would write into that one's directory."""
    mine = (str(identity["job_id"]), str(identity["attempt"]))
    given = (environment.get(contract.JOB_ID, mine[0]), environment.get(contract.ATTEMPT, mine[1]))
    if given != mine:
        raise ConfigError(
            f"this is the bootstrap of {'/'.join(mine)}, and the environment is that of {'/'.join(given)}: to run it "
            f"by hand, unset {contract.JOB_ID}, {contract.ATTEMPT} and {contract.ATTEMPT_DIR}"
        )


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
