"""JuiceFS on a node: mounted once for all attempts, unmounted by the last one, its password shown to nobody."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from dispatcher.hosts.types import Cluster, PlainHost
from dispatcher.outlets.node.setup import JuiceFS, node_setup

PASSWORD = "pa ss'word@1"
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="the stand-in mounts, which root may")


def is_mounted(path: Path) -> bool:
    return subprocess.run(["mountpoint", "--quiet", path], check=False).returncode == 0


@pytest.fixture
def mounted(node, tmp_path):
    """A node whose cluster has a JuiceFS; nothing is mounted when the test has ended."""
    store = tmp_path / "store"
    (store / "volume").mkdir(parents=True)
    (store / "volume" / "data").write_text("data\n")
    point = tmp_path / "mount 'point'"
    node.with_fake("juicefs")
    node.environment["FAKE_JUICEFS_STORE"] = os.fspath(store)
    mount = JuiceFS(
        url="redis://:@meta.example:6379/1",
        root=os.fspath(point),
        password=PASSWORD,
        cache_size="1024",
        cache_dir="$CACHES/juice",
        all_squash="1000:1000",
    )
    node.configure(juicefs=mount, env={"CACHES": "/var/it's"})
    node.point = point
    node.log = store / "log"
    yield node
    while is_mounted(point):
        subprocess.run(["umount", "--lazy", point], check=True)


def test_mounted_while_the_command_runs(mounted):
    one = mounted.run(f'cat "{mounted.point}/data"; touch "{mounted.point}/new"; echo ${{META_PASSWORD-unset}}; exit 3')
    assert (one.status, one.output) == (3, "data\nunset\n")
    assert not is_mounted(mounted.point)
    assert mounted.log.read_text().splitlines() == [
        "mount --all-squash=1000:1000 --background= --cache-dir=/var/it's/juice --cache-size=1024 --no-usage-report=",
        "umount",
    ]


def test_the_password_is_in_no_script_and_no_log(mounted):
    one = mounted.start(f"{{ ps -ef; echo listed; }} | cat; ls {mounted.local}/*/*").says("listed")
    one.ended()
    assert "ss'word" not in one.output
    assert "ss'word" not in one.script.read_text()
    assert "ss'word" not in repr(mounted.setup)


def test_two_attempts_share_the_mount(mounted, tmp_path):
    """The first one to end leaves it to the other."""
    script = (
        f'cat "{mounted.point}/data"; until [ -e {tmp_path}/go%d ]; do sleep 0.02; done; cat "{mounted.point}/data"'
    )
    first = mounted.start(script % 1).says("data")
    second = mounted.start(script % 2, number=2).says("data")
    (tmp_path / "go1").touch()
    assert first.ended().status == 0
    assert is_mounted(mounted.point)
    (tmp_path / "go2").touch()
    assert second.ended().status == 0
    assert second.output == "data\ndata\n"
    assert not is_mounted(mounted.point)
    assert mounted.log.read_text().split().count("umount") == 1


def test_many_attempts_at_once(mounted):
    runs = [mounted.start(f'cat "{mounted.point}/data"', number=number) for number in range(1, 9)]
    assert [one.ended().output for one in runs] == ["data\n"] * 8
    assert not is_mounted(mounted.point)


def test_a_killed_attempt_does_not_count_as_a_user(mounted):
    first = mounted.start("echo ready; sleep 60").says("ready")
    first.tell_group(signal.SIGKILL)
    first.ended()
    assert is_mounted(mounted.point)
    assert mounted.run(f'cat "{mounted.point}/data"', number=2).output == "data\n"
    assert not is_mounted(mounted.point)
    assert [line.split()[0] for line in mounted.log.read_text().splitlines()] == ["mount", "umount"]


def test_a_mount_of_somebody_else_stays(mounted):
    mounted.point.mkdir()
    subprocess.run(["mount", "--bind", mounted.log.parent / "volume", mounted.point], check=True)
    assert mounted.run(f'cat "{mounted.point}/data"').output == "data\n"
    assert is_mounted(mounted.point)
    assert not mounted.log.exists()


def test_a_wrong_password_is_a_failed_setup(mounted):
    mounted.configure(juicefs=JuiceFS(url="redis://:@meta.example:6379/1", root=os.fspath(mounted.point), password="x"))
    one = mounted.run("echo ran")
    assert (one.status, one.has_failed_setup) == (1, True)
    assert "NOAUTH Authentication required" in one.output
    assert f"JuiceFS cannot be mounted at {mounted.point}" in one.output.splitlines()[-1]


def test_no_juicefs(mounted):
    mounted.path.clear()
    one = mounted.run("echo ran")
    assert one.has_failed_setup
    assert "juicefs: there is no such program on PATH=" in one.output
    assert one.output.splitlines()[-1].endswith("install it, or set juicefs_installer")


def test_juicefs_is_installed_where_the_cluster_says_how(mounted, tmp_path):
    """By its own installer, whose argument is the directory; once for all attempts of the node."""
    (program,) = (Path(folder) / "juicefs" for folder in mounted.path)
    mounted.path.clear()
    mounted.environment["HOME"] = os.fspath(tmp_path)
    installer = tmp_path / "install.sh"
    installer.write_text(f'echo ran >>"{tmp_path}/installs"; exec ln -s "{program}" "$1/juicefs"\n')
    mounted.configure(juicefs=msgspec.structs.replace(mounted.setup.juicefs, installer=os.fspath(installer)))
    for number in (1, 2):
        one = mounted.run(f'cat "{mounted.point}/data"', number=number)
        assert (one.status, one.output) == (0, "data\n"), one.output
    assert (tmp_path / "installs").read_text() == "ran\n"


@pytest.mark.parametrize(
    ("address", "url", "password"),
    [
        ("redis://:p%40ss%2F@h:6379/1", "redis://:@h:6379/1", "p@ss/"),
        ("rediss://user:a:b@h/1", "rediss://user:@h/1", "a:b"),
        (
            "postgres://me:secret@h:5432/juicefs?sslmode=disable",
            "postgres://me:@h:5432/juicefs?sslmode=disable",
            "secret",
        ),
        ("mysql://me:p%40@x@(h:3306)/juicefs", "mysql://me:@(h:3306)/juicefs", "p%40@x"),
        ("redis://h:6379/1", "redis://h:6379/1", None),
        ("sqlite3:///lab/it's.db", "sqlite3:///lab/it's.db", None),
    ],
)
def test_the_password_of_an_address(address, url, password):
    cluster = Cluster(name="lab", root="/mnt/lab", mount=address)
    made = node_setup(cluster, PlainHost(name="h", cluster="lab", ssh="h"), work_id="w", base="/base").juicefs
    assert made is not None
    assert (made.url, made.password, made.root) == (url, password, "/mnt/lab")


def test_what_a_node_is_made_from():
    cluster = Cluster(name="lab", root="/r", data="/d", work="$SCRATCH", uv_dir="/uv", env={"A": "cluster", "B": "b"})
    host = PlainHost(name="h", cluster="lab", ssh="h", env={"A": "host"}, modules=("cuda",), uv_groups=("gpu",))
    made = node_setup(cluster, host, work_id="w", base="/base")
    assert (made.env, made.images, made.directories) == ({"A": "host", "B": "b"}, "/base/images", ("/r", "/d"))
    assert (made.modules, made.work, made.uv_groups, made.juicefs) == (("cuda",), "$SCRATCH", ("gpu",), None)
    assert Path(made.local_dir).is_dir()
