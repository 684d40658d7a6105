"""Checkpoints in an S3 server on loopback, real HTTP through obstore, also while the server fails or is away."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("moto.server", reason="the S3 server of these tests is moto[server]")
pytest.importorskip("obstore")

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from tiny_runs import TESTS, environment, free_port, one_of_two
from tiny_training import config
from werkzeug.serving import BaseWSGIServer, make_server

from dispatcher import contract
from dispatcher.base.yaml_text import dump
from dispatcher.errors import CheckpointError, DamagedCheckpointError, StorageError, SupersededError
from dispatcher.runtime.checkpoint import CheckpointManager, Contents, Retention


class Server:
    """moto's S3 behind a port of its own. `fault` may answer a request in its place, or after it was carried out."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[int, str, str], bool] = lambda number, method, path: False
        self.after: Callable[[int, str, str], bool] = lambda number, method, path: False
        self._server: BaseWSGIServer | None = None
        self._lock = threading.Lock()
        self.port = 0
        self.start()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.requests.append((method, path))
            number = len(self.requests)
        if self.before(number, method, path):
            return self._failure(start_response)
        answer = self._app(environ, start_response if not self.after(number, method, path) else _unheard)
        return self._failure(start_response) if self.after(number, method, path) else answer

    def start(self) -> None:
        self._server = make_server("127.0.0.1", self.port, self, threaded=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @staticmethod
    def _failure(start_response: Any) -> list[bytes]:
        start_response("503 Slow Down", [("Content-Type", "text/plain")])
        return [b"slow down"]


def _unheard(*_: Any) -> Callable[[bytes], None]:
    return lambda data: None


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr("werkzeug.serving.WSGIRequestHandler.log", lambda *_: None)
    running = Server()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    yield running
    running.stop()


@pytest.fixture
def bucket(server) -> str:
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    client(server).create_bucket(Bucket=name)
    return name


def client(server: Server) -> Any:
    return boto3.client("s3", endpoint_url=server.url, region_name="us-east-1")


def keys(server: Server, bucket: str) -> list[str]:
    listed = client(server).list_objects_v2(Bucket=bucket).get("Contents", [])
    return [each["Key"] for each in listed]


@pytest.fixture
def open_manager(bucket, tmp_path) -> Callable[..., CheckpointManager]:
    def make(**options: Any) -> CheckpointManager:
        return CheckpointManager(f"s3://{bucket}/lab/run", scratch=tmp_path / "ckpt.tmp", **options)

    return make


def test_save_and_restore(server, bucket, open_manager, state, same, tmp_path):
    with open_manager(retention=Retention(last=2)) as checkpoints:
        assert checkpoints.latest() is None
        for step in (1, 2, 3):
            ref = checkpoints.save(state(step), step, metadata={"step": step})
        restored = checkpoints.load(state(0))
        same(restored.tree, state(3))
        assert (restored.ref, dict(restored.contents.metadata)) == (ref, {"step": 3})
        assert ref.url == f"s3://{bucket}/lab/run/step-00000003"
        assert [each.step for each in checkpoints.checkpoints()] == [2, 3]
        checkpoints.register("step-00000002")
        assert checkpoints.latest().step == 2
    found = {key.split("/")[2] for key in keys(server, bucket)}
    assert found == {"latest", "step-00000002", "step-00000003"}
    assert not (tmp_path / "ckpt.tmp").exists(), "scratch is gone"


def test_the_manifest_is_put_last_and_only_if_it_is_absent(server, open_manager, state):
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
    puts = [path for method, path in server.requests if method == "PUT" and "step-00000001" in path]
    assert puts[-1].endswith("step-00000001/manifest.json")
    assert len(puts) > 5


def test_large_files_go_in_parts(open_manager, monkeypatch):
    from dispatcher.runtime.checkpoint import objects

    monkeypatch.setattr(objects, "_PART_BYTES", 5 * 1024 * 1024)
    tree = {"w": np.random.default_rng(0).random(1_700_000), "v": jnp.arange(10)}
    with open_manager() as checkpoints:
        checkpoints.save(tree, 1)
        found = checkpoints.restore(tree)
    assert np.array_equal(found["w"], tree["w"])


def test_a_name_is_replaced_and_its_files_go(server, bucket, open_manager, state, same):
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1, name="best")
        checkpoints.wait()
        checkpoints.save(state(2), 2, name="best")
        same(checkpoints.restore(state(0)), state(2))
    found = {key.split("/")[3] for key in keys(server, bucket) if "/best/" in key}
    assert len(found) == 2, "the manifest and one prefix"


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_set_aside(server, bucket, open_manager, state, same, caplog, damage):
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.save(state(2), 2)
        checkpoints.wait()
        victim = next(key for key in keys(server, bucket) if "step-00000002/" in key and key.endswith("/tree.json"))
        body = bytearray(client(server).get_object(Bucket=bucket, Key=victim)["Body"].read())
        if damage == "remove":
            client(server).delete_object(Bucket=bucket, Key=victim)
        else:
            body[10] ^= 1
            client(server).put_object(
                Bucket=bucket, Key=victim, Body=bytes(body[:50] if damage == "truncate" else body)
            )
        with pytest.raises(DamagedCheckpointError, match=r"tree.json: (checksum|50 bytes|missing)"):
            checkpoints.restore(state(0), checkpoints.find("step-00000002"))
        same(checkpoints.restore(state(0)), state(1))
        assert "step-00000002: the checkpoint is damaged" in caplog.text
        assert f"s3://{bucket}/lab/run/step-00000002/manifest.damaged.json" in caplog.text
        assert [each.step for each in checkpoints.checkpoints()] == [1]


def test_a_rewind_sets_aside_what_was_saved_later(server, bucket, open_manager, state, same):
    with open_manager(retention=Retention(last=9)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(state(step), step)
        checkpoints.save(state(3), 3, name="best", resumable=False)
        assert checkpoints.rewind("step-00000001").step == 1
        assert {f"lab/run/{name}/manifest.set-aside.json" for name in ("step-00000002", "step-00000003", "best")} <= {
            *keys(server, bucket)
        }
        assert [each.name for each in checkpoints.checkpoints()] == ["step-00000001"]
    with open_manager(retention=Retention(last=9)) as checkpoints:
        same(checkpoints.restore(state(0)), state(1))
        # Under a name that was set aside.
        checkpoints.save(state(20), 2)
        checkpoints.wait()
        assert checkpoints.latest().name == "step-00000002"
        same(checkpoints.restore(state(0)), state(20))
    # Nothing is damaged.
    client(server).delete_object(Bucket=bucket, Key="lab/run/latest")
    with open_manager() as checkpoints:
        assert checkpoints.latest().step == 2


def test_a_lost_pointer_is_survived(server, bucket, open_manager, state):
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        client(server).delete_object(Bucket=bucket, Key="lab/run/latest")
        assert checkpoints.latest().step == 1


def test_a_server_that_fails_every_third_request(server, open_manager, state, same):
    server.before = lambda number, method, path: number % 3 == 0
    with open_manager() as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step), step)
        same(checkpoints.restore(state(0)), state(2))
        assert [each.step for each in checkpoints.checkpoints()] == [1, 2]


def test_an_answer_that_is_lost_after_the_commit(server, bucket, open_manager, state, same):
    """The manifest was put, but the client hears a failure: its second try finds its own and is content."""
    lost = []

    def lose(number: int, method: str, path: str) -> bool:
        if method == "PUT" and path.endswith("manifest.json") and (not lost or lost[0] == number):
            lost.append(number)
            return True
        return False

    server.after = lose
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        assert lost
        same(checkpoints.restore(state(0)), state(1))


def test_a_server_that_is_away_for_ten_seconds(server, open_manager, state, same):
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        seen = threading.Event()

        def goes_away(number: int, method: str, path: str) -> bool:
            if method == "PUT" and "step-00000002" in path and not seen.is_set():
                seen.set()
                threading.Thread(target=server.stop).start()
                threading.Timer(10, server.start).start()
            return seen.is_set() and not back.is_set()

        back = threading.Event()
        threading.Timer(11, back.set).start()
        server.before = goes_away
        checkpoints.save(state(2), 2)
        assert seen.wait(30), "the upload never began"
        checkpoints.wait()
        same(checkpoints.restore(state(0)), state(2))


def test_a_server_that_stays_away_is_an_error_and_costs_nothing(server, open_manager, state, same):
    with open_manager(retry_timeout_s=2) as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        server.before = lambda number, method, path: method == "PUT"
        checkpoints.save(state(2), 2)
        with pytest.raises(StorageError, match=r"step-00000002/.*: could not be uploaded: .*; tried for 2 s"):
            checkpoints.wait()
        server.before = lambda number, method, path: False
        same(checkpoints.restore(state(0)), state(1))
        checkpoints.save(state(2), 2)
        same(checkpoints.restore(state(0)), state(2))


def test_no_bucket(server, tmp_path):
    with (
        CheckpointManager("s3://no-such-bucket/x", scratch=tmp_path) as checkpoints,
        pytest.raises(StorageError, match="is there such a bucket"),
    ):
        checkpoints.save({"x": 1}, 1)


def test_an_endpoint_without_encryption_is_refused_at_once(server, open_manager, monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with open_manager() as checkpoints, pytest.raises(StorageError, match=r"set AWS_ALLOW_HTTP=true") as caught:
        checkpoints.latest()
    assert "tried for" not in str(caught.value)
    assert not any("/lab/run" in path for _, path in server.requests)


REFUSAL = (
    "<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>no</Message><AWSAccessKeyId>AKIAHUSH</AWSAccessKeyId>"
    "<CanonicalRequest>x-amz-security-token:hush-hush</CanonicalRequest></Error>"
)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("403 Forbidden", "InvalidAccessKeyId"),
        ("403 Forbidden", "SignatureDoesNotMatch"),
        ("403 Forbidden", "AccessDenied"),
        ("401 Unauthorized", "Unauthorized"),
        ("400 Bad Request", "ExpiredToken"),
    ],
)
def test_credentials_that_are_refused_are_named_and_not_shown(
    server, bucket, open_manager, monkeypatch, caplog, status, code
):
    def refused(start_response: Any) -> list[bytes]:
        start_response(status, [("Content-Type", "application/xml")])
        return [REFUSAL.format(code=code).encode()]

    server.before = lambda number, method, path: True
    monkeypatch.setattr(server, "_failure", refused)
    with caplog.at_level("DEBUG", "dispatcher"), open_manager() as checkpoints:
        for asked in (checkpoints.latest, lambda: checkpoints.find("best"), lambda: checkpoints.save({"x": 1}, 1)):
            with pytest.raises(StorageError, match=f"{status} .{code}.; the server refuses the credentials") as caught:
                asked()
            said = "".join(traceback.format_exception(caught.value)) + caplog.text
            assert "AKIAHUSH" not in said and "hush-hush" not in said, said
            assert "is there such a bucket" not in said


def test_a_superseded_attempt_commits_nothing(server, bucket, open_manager, state, attempt):
    directory = attempt(1)

    def superseded_meanwhile(number: int, method: str, path: str) -> bool:
        if method == "PUT" and path.endswith("tree.json"):
            (directory / contract.SUPERSEDED_FILE).touch()
        return False

    server.before = superseded_meanwhile
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
        with pytest.raises(SupersededError, match="was superseded"):
            checkpoints.wait()
        assert checkpoints.latest() is None
    assert not [key for key in keys(server, bucket) if key.endswith("manifest.json")]
    attempt(2)
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
    prefixes = {key.split("/")[3].rsplit(".", 1)[0] for key in keys(server, bucket) if "step-00000001/" in key}
    assert prefixes == {"manifest", "fft_spanish.2"}, "what the first one uploaded is gone"


def test_a_late_older_attempt_does_not_overwrite_a_name(server, open_manager, state, same, attempt, monkeypatch):
    attempt(1)
    older = open_manager()
    attempt(2)
    newer = open_manager()
    done = threading.Event()

    def too_late(number: int, method: str, path: str) -> bool:
        if method == "PUT" and path.endswith("best/manifest.json") and not done.is_set():
            done.set()
            newer.save(state(2), 2, name="best")
            newer.wait()
        return False

    server.before = too_late
    older.save(state(1), 1, name="best")
    with pytest.raises(SupersededError, match=r"attempt 2 of fft_spanish has saved .*/best already"):
        older.wait()
    same(newer.restore(state(0), newer.find("best")), state(2))
    older.close()
    newer.close()


def test_several_processes_need_a_directory_that_all_see(server, bucket, monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(CheckpointError, match=r"several processes .* pass scratch="):
        CheckpointManager(f"s3://{bucket}/x")


def test_scratch_of_a_killed_process_is_removed(open_manager, state, tmp_path: Path):
    left = tmp_path / "ckpt.tmp" / "0123456789ab" / "1"
    left.mkdir(parents=True)
    (left / "arrays").write_bytes(b"x" * 1000)
    (tmp_path / "ckpt.tmp" / "0123456789ab.lock").touch()
    with open_manager() as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        assert not left.exists()


def test_no_secret_is_written_down(open_manager, server, bucket, state, caplog, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    monkeypatch.setenv("WANDB_API_KEY", "hush-hush")
    with caplog.at_level("DEBUG", "dispatcher"), open_manager(retry_timeout_s=1.0) as checkpoints:
        checkpoints.save(state(1), 1, beside=Contents(job={"job": "x"}, config="x: 1\n"))
        checkpoints.wait()
        server.before = lambda number, method, path: method == "PUT"
        checkpoints.save(state(2), 2)
        with pytest.raises(StorageError) as caught:
            checkpoints.wait()
    stored = [client(server).get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys(server, bucket)]
    assert len(stored) > 5
    assert "trying again" in caplog.text
    assert b"hush" not in b"".join(stored)
    assert "hush" not in caplog.text + str(caught.value)


@pytest.mark.demo
@pytest.mark.slow
def test_two_processes_of_a_job_save_to_a_bucket(server, bucket, tmp_path: Path, jax_cache):
    """By hand, without a shared scratch directory."""
    (tmp_path / "c.yaml").write_text(dump({"job": "tests/tiny", **config(eval_every=None)}))
    words = ["run", "tiny", "c.yaml", "out", "--import", str(TESTS / "tiny_training.py")]
    command = [sys.executable, "-P", "-m", "dispatcher.runtime", *words, "--checkpoints", f"s3://{bucket}/lab"]
    address = f"127.0.0.1:{free_port()}"
    environments = [environment(jax_cache, **one_of_two(address, number)) for number in range(2)]
    started = [subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE) for env in environments]
    try:
        said = [process.communicate(timeout=200)[1].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    with CheckpointManager(f"s3://{bucket}/lab/default/default/tiny", scratch=tmp_path / "scratch") as checkpoints:
        assert {each.name for each in checkpoints.checkpoints()} == {"best", "step-00000040"}
    assert not (tmp_path / "out" / "ckpt.tmp").exists()
