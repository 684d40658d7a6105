"""Following the logs of all machines of an attempt at once, for `logs -f`: each line with the index of its machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping

from dispatcher.cli.log_lines import LastLines, Lines, Output, Sink, Stopped
from dispatcher.cli.remote_log import RemoteLog, copy_what_is_there, follow_elsewhere


def follow_several(
    logs: Mapping[int, RemoteLog],
    out: Sink,
    tail: int | None,
    has_ended: Callable[[], bool],
    pattern: re.Pattern[str] | None = None,
) -> None:
    """Copy all logs from their beginning, or the last `tail` lines of each, until the attempt has ended on all.

    `logs` are by the index of their machine. Each is followed by a thread of its own, with a connection that is made
    again when it breaks off. With `pattern`, only lines with a match.
    """
    output, asking = Output(out), threading.Lock()

    def is_over() -> bool:
        with asking:
            return output.stopping.is_set() or has_ended()

    def follow(index: int, where: RemoteLog) -> None:
        lines = Lines(output, b"[%d] " % index, pattern)
        offset = 0
        try:
            if tail is not None:
                last = LastLines(tail)
                offset = copy_what_is_there(where, last)
                last.write_to(lines)
            follow_elsewhere(where, lines, offset, is_over)
            lines.end()
        except (Stopped, BrokenPipeError):
            output.stopping.set()

    threads = [threading.Thread(target=follow, args=each) for each in logs.items()]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        # Interrupted by a person: those that copy are stopped by their next line, or within a second.
        output.stopping.set()
