"""The job of the chaos test: it proves that it was the only attempt of its entry for as long as anything of it lived.

    witness.py FOLDER JOB SECONDS [stray]

The lock on FOLDER/JOB.lock is free when the process is gone, however it went; FOLDER/JOB.running is removed only at a
proper end. So a file that is there although the lock is free was left by an attempt that was killed, perhaps just after
it had noted its end, and a lock that is not free is an attempt that runs at the same time. A `stray` leaves a child in
a session of its own, without any of its descriptors but that lock.
"""

import fcntl
import os
import sys
import time


def note(path: str, *words: object) -> None:
    """Append one line; a killed process leaves all of it or nothing."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    os.close(fd)


def text_of(path: str) -> str:
    with open(path) as file:
        return file.read()


def leave_stray(lock: int) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(lock, 100)
            os.closerange(0, 100)
            os.closerange(101, 1024)
            time.sleep(600)
        os._exit(0)


def main() -> int:
    folder, job, seconds = sys.argv[1:4]
    attempt = os.environ["DISPATCHER_ATTEMPT"]
    times, running = f"{folder}/{job}.times", f"{folder}/{job}.running"
    lock = os.open(f"{folder}/{job}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(f"{folder}/twice", job, attempt, "runs beside another one")
        note(f"{folder}/twice", *text_of(times).splitlines()[-1:])
        return 1
    try:
        mine = os.open(running, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        note(times, "killed", text_of(running) or "?", time.monotonic_ns())
        os.unlink(running)
        mine = os.open(running, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    os.write(mine, attempt.encode())
    note(times, "begin", attempt, time.monotonic_ns())
    if "stray" in sys.argv[4:]:
        leave_stray(lock)
    time.sleep(float(seconds))
    # In this order: killed in between, it leaves a file that its successor finds, and not an end that nobody noted.
    note(times, "end", attempt, time.monotonic_ns())
    os.unlink(running)
    return 0


sys.exit(main())
