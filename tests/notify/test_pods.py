"""Real pods that tell people: what is told, and that it is told once."""

from __future__ import annotations

from pathlib import Path

from fleet import Fleet, shell, wait_until
from told_notices import configure, events, keeping, lines, told


def test_three_pods_tell_once_that_a_job_failed(fleet: Fleet, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    configure(fleet, {"chat": {"command": keeping(kept), "events": ["job_failed"]}}, after="1s")
    fleet.write_manifest([shell(f"a{number}", "echo begun; exit 3") for number in range(4)])
    pods = [fleet.start(f"pod-{number}", poll="0.5") for number in range(3)]
    wait_until(lambda: lines(fleet, "notice_ended"), "a notice was sent")
    for pod in pods:
        pod.stop()
    [notice] = told(kept)
    assert events([notice]) == [("job_failed", 4)]
    assert sorted(notice["events"][0]["jobs"]) == ["a0", "a1", "a2", "a3"]
    assert notice["events"][0]["cause"] == "exit 3"
    assert [one["state"] for one in lines(fleet, "notice_ended")] == ["sent"]
