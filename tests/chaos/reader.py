"""Reads a status file without a lock, again and again, and tells of every time when it was not whole.

    reader.py STATUS_FILE WINDOW REPORT

Whoever writes the file in place holds WINDOW meanwhile: what is read then may be a half. TERM ends the reader, which
then writes to REPORT how often it has read, and what was wrong.
"""

import fcntl
import json
import os
import signal
import sys
import time


def main() -> None:
    status_file, window, report = sys.argv[1:4]
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    reads, faults = 0, []
    lock = os.open(window, os.O_RDWR | os.O_CREAT, 0o666)
    while not ended:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            with open(status_file, "rb") as file:
                data = file.read()
            json.loads(data)
        except (ValueError, OSError) as error:
            faults.append(f"read {reads}: {error!r}")
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
        reads += 1
        time.sleep(0.005)
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"reads": reads, "faults": faults}, file)


main()
