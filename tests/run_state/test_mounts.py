"""Which mount a path stands on."""

from __future__ import annotations

from dispatcher.base.mounts import unescaped


def test_mount_points_with_blanks_and_other_letters() -> None:
    assert unescaped("/mnt/größe\\040b\\011c\\134d") == "/mnt/größe b\tc\\d"
    assert unescaped("/mnt/\udce4\\0401") == "/mnt/\udce4 1"
    assert unescaped("/mnt/größe") == "/mnt/größe"
