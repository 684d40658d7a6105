"""What a terminal of 80 columns shows of a crowded workspace."""

from __future__ import annotations

import signal

import crowded
import pytest
from screens import screen

from dispatcher.base.terminal import width_of

FAILED = f"fft_greek_s10{crowded.LONG}"


@pytest.fixture
def crowd(lab):
    crowded.fill(lab)
    return lab


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (("status",), 80),
        (("status",), 40),
        (("status",), 60),
        (("status",), 100),
        (("status",), 200),
        (("status", "--state", "failed,running,queued"), 80),
        (("status", "--by", "reason"), 80),
        (("status", "--by", "job_id,note"), 80),
        (("pods",), 80),
        (("pods",), 40),
        (("pods", "--all"), 80),
        (("show", FAILED), 80),
        (("show", crowded.STALLED), 80),
        (("history",), 80),
        (("history",), 40),
        (("history", FAILED), 80),
        (("matrix", "show"), 80),
    ],
)
def test_no_line_is_wider_than_the_terminal(crowd, words, columns):
    with screen(crowd, *words, columns=columns) as shown:
        assert shown.end() == 0
        assert len(shown.lines()) > 2
        assert [line for line in shown.lines() if width_of(line) > columns] == []


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_status_begins_with_the_counts_however_narrow(crowd, columns):
    with screen(crowd, "status", columns=columns) as shown:
        shown.end()
        lines = shown.lines()
    assert len(lines) <= 23
    assert lines[0].startswith("56 jobs: queued ")
    assert any(line.startswith("failed") and " cause" in line for line in lines)


def headings(crowd, *words, columns):
    with screen(crowd, *words, columns=columns) as shown:
        assert shown.end() == 0
        rule = next(number for number, line in enumerate(shown.lines()) if line.startswith("---"))
        return shown.lines()[rule - 1].split()


def test_what_people_came_for_stays_on_a_narrow_terminal(crowd):
    assert headings(crowd, "history", "--event", "failed", columns=40)[-3:] == ["event", "job", "changes"]
    assert headings(crowd, "status", "--by", "method,job_id", columns=40)[:2] == ["method", "job_id"]
    assert headings(crowd, "status", "--state", "failed", columns=60) == ["job", "state", "reason", "error"]
    for number in range(18, 25):
        job = crowded.entries()[number]["job_id"]
        crowd.attempt(job, result='{"test_bpc": 1.25, "steps": 1000}')
    assert headings(crowd, "results", columns=40)[:2] == ["job_id", "test_bpc"]
    assert headings(crowd, "results", columns=30) == ["job_id", "test_bpc"]


def test_ids_on_a_narrow_terminal_can_be_told_apart(crowd):
    with screen(crowd, "history", "--event", "done", columns=45) as shown:
        assert shown.end() == 0
        rows = [line for line in shown.lines() if " done " in line]
    jobs = {row.split()[-1] for row in rows}
    assert len(jobs) == len(rows) == 7
    assert any("…" in job for job in jobs)


def test_status_fits_a_screen_of_24_lines(crowd):
    with screen(crowd, "status") as shown:
        shown.end()
        lines = shown.lines()
    assert len(lines) <= 23
    assert lines[0].startswith("56 jobs: queued ")
    assert "9 of 9 slots busy" in lines[1]
    # The stalled one comes first where not all have room.
    running = next(number for number, line in enumerate(lines) if line.startswith("job "))
    assert lines[running + 1].split()[2:] == ["stalled", "1h00m,", "30%", "1h06m"]
    assert any(line.startswith("... and ") and line.endswith("--state running,submitted") for line in lines)


def test_a_large_terminal_and_a_pipe_show_all_that_runs(crowd):
    with screen(crowd, "status", lines=60) as shown:
        shown.end()
        assert len([line for line in shown.lines() if "gpu-a" in line or "pod-0:" in line]) == 9
    piped = crowd.run("status").out
    assert all(f"{job['job_id']} " in piped for job in crowded.entries()[:9])


def test_watch_scrolls_under_a_header_that_stays(crowd):
    with screen(crowd, "status", "--watch", "--interval", "30") as shown:
        shown.wait_for(lambda lines: len(lines) == 24, "the first frame")
        header = shown.frame()[:5]
        assert "56 jobs" in header[1]
        assert header[4].startswith("failed: ")
        first = shown.frame()[5:]
        shown.send(b"j")
        shown.wait_for(lambda lines: lines[5:-2] == first[1:-1], "one line further")
        assert shown.frame()[:5] == header
        shown.send(b" ")
        shown.wait_for(lambda lines: "stalled" in "\n".join(lines[5:-1]), "a page further")
        shown.send(b"\x1b[5~k")
        shown.wait_for(lambda lines: lines[5:] == first, "back at the top")
        shown.send(b"G")
        shown.wait_for(lambda lines: any("dispatcher unpause lora" in line for line in lines), "the notices at the end")
        shown.send(b"q")
        assert shown.end() == 0
        assert shown.is_as_before
        assert shown.written.rstrip().endswith("\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_watch_leaves_the_terminal_as_it_was(crowd, number, code):
    with screen(crowd, "status", "--watch") as shown:
        shown.wait_for(bool, "the first frame")
        assert not shown.is_as_before
        assert shown.end(number) == code
        assert shown.is_as_before
        assert "\x1b[?25h\x1b[?1049l" in shown.written
        assert "Traceback" not in shown.written


def test_watch_follows_the_size_of_the_terminal(crowd):
    with screen(crowd, "status", "--watch", "--interval", "30") as shown:
        shown.wait_for(lambda lines: len(lines) == 24, "the first frame")
        shown.resize(12, 60)
        shown.process.send_signal(signal.SIGWINCH)
        shown.wait_for(lambda lines: len(lines) == 12 and max(map(width_of, lines)) <= 60, "a frame of the new size")
        assert shown.end(signal.SIGINT) == 0


def test_watch_shows_changes(crowd):
    with screen(crowd, "status", "--watch", "--interval", "0.1") as shown:
        shown.wait_for(lambda lines: any("held 1" in line for line in lines), "the first frame")
        crowd.run("hold", "fft_greek_s31")
        shown.wait_for(lambda lines: any("held 2" in line for line in lines), "the change")
        assert shown.end(signal.SIGINT) == 0


def test_a_terminal_without_a_size_has_80_columns(crowd):
    with screen(crowd, "status", lines=0, columns=0) as shown:
        shown.end()
        assert 60 < max(map(width_of, shown.lines())) <= 80


def test_a_terminal_without_an_ellipsis_shows_the_table(crowd):
    with screen(crowd, "status", PYTHONIOENCODING="latin-1") as shown:
        assert shown.end() == 0
        assert any("?" in line for line in shown.lines())


def test_watch_goes_on_when_it_can_read_again(crowd):
    journal = crowd.layout.journal(1)
    with screen(crowd, "status", "--watch", "--interval", "0.1") as shown:
        shown.wait_for(bool, "the first frame")
        whole = journal.read_bytes()
        journal.write_bytes(whole[: len(whole) // 2])
        shown.wait_for(lambda lines: "cannot be read" in lines[0], "the error above the last numbers")
        assert any("56 jobs" in line for line in shown.frame())
        journal.write_bytes(whole)
        shown.wait_for(lambda lines: lines and "cannot be read" not in lines[0], "the error is gone")
        assert shown.end(signal.SIGINT) == 0


def test_what_jobs_say_does_not_control_the_terminal(crowd):
    crowd.put("fft_greek_s39", "failed", reason="exit \x1b]0;title\x07", error="\x1b[2J\x9b2J")
    with screen(crowd, "status", "--watch", NO_COLOR="1") as shown:
        shown.wait_for(lambda lines: any("exit ?]0;title?" in line for line in lines), "the reason in the header")
        assert shown.end(signal.SIGINT) == 0
        assert "\x07" not in shown.written
        assert "\x9b" not in shown.written
        assert "\x1b[2J" not in shown.written


def test_the_numbers_are_seen_after_all_pods_have_died(crowd):
    for number in range(5):
        crowd.put(f"fft_greek_s{29 + 2 * number}", "running", pod=f"dead-{number}")
        crowded.write_pod(crowd, f"dead-{number}", "running", [], lock="flock")
    with screen(crowd, "status") as shown:
        shown.end()
        lines = shown.lines()
    assert len(lines) <= 23
    assert lines[0].startswith("56 jobs")
    assert "pods dead-0 on node-17.cluster.example (1 job), dead-1 on " in " ".join(lines).replace("       ", " ")


@pytest.mark.parametrize("words", [("status",), ("status", "--by", "method"), ("pods",), ("history",)])
def test_colours_can_be_turned_off(crowd, words):
    with screen(crowd, *words) as shown:
        assert shown.end() == 0
        assert "\x1b[3" in shown.written
    with screen(crowd, *words, NO_COLOR="1") as shown:
        assert shown.end() == 0
        assert "\x1b" not in shown.written
