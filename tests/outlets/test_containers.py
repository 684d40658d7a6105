"""Container runtimes that this machine does not have: their words, images, GPUs, and what reaches a command."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from fleet import wait_until
from hostile_words import HOSTILE_WORDS
from node_trials import Node, archive_of

from dispatcher.errors import TemplateError
from dispatcher.hosts.types import Container
from dispatcher.outlets.node.containers import container_words

URI = "docker://nvcr.io/nvidia/jax:24.04-py3"
NODE = os.uname().nodename
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="the stand-in mounts in a namespace, which root may")


def test_the_words_of_each_runtime():
    options = ("--writable-tmpfs", "--it's")
    made = container_words(
        Container(runtime="apptainer", image=URI, mounts=("/data", "/a:/b:ro"), options=options), ["/w"]
    )
    assert made.begin == ("apptainer", "exec")
    assert made.options == ("--bind", "/data:/data", "--bind", "/a:/b:ro", "--writable-tmpfs", "--it's")
    assert (made.image, made.convert, made.remove) == (URI, ("apptainer", "pull"), ())
    made = container_words(Container(runtime="podman", image="x:1", mounts=("/data",)), ["/w"])
    assert made.begin == (
        *("podman", "run", "--init", "--replace", "--network", "host", "--ipc", "host"),
        *("--security-opt", "label=disable"),
    )
    assert (made.options, made.image_file) == (("--volume", "/data:/data"), "")
    made = container_words(Container(runtime="podman", image="x", options=("--network=none", "--ipc", "private")), [])
    assert made.begin[4:] == ("--security-opt", "label=disable")
    made = container_words(Container(runtime="enroot", image=URI), ["/w"])
    assert (made.begin, made.convert) == (("enroot", "start"), ("enroot", "import", "--output"))


def test_the_address_of_an_image():
    digest = "ab" * 32
    assert container_words(Container(runtime="apptainer", image=f"{URI}@sha256:{digest}"), []).image_file == (
        f"{digest}.sif"
    )
    tagged = container_words(Container(runtime="enroot", image=URI), []).image_file
    assert tagged == f"{hashlib.sha256(URI.encode()).hexdigest()}.sqsh"
    assert container_words(Container(runtime="apptainer", image="/images/jax.sif"), []).image_file == ""


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        (URI, "docker://nvcr.io/nvidia/jax"),
        ("docker://nvcr.io#nvidia/jax:24.04", "docker://nvcr.io#nvidia/jax"),
        ("docker://$oauthtoken@nvcr.io#nvidia/jax", "docker://$oauthtoken@nvcr.io#nvidia/jax"),
        ("docker://localhost:5000#lab/jax:2", "docker://localhost:5000#lab/jax"),
        ("docker://localhost:5000/lab/jax", "docker://localhost:5000/lab/jax"),
        ("docker://ubuntu:22.04", "docker://ubuntu"),
        (f"docker://nvcr.io#nvidia/jax@sha256:{'ab' * 32}", None),
        ("dockerd://jax:1", None),
        ("/images/jax.sqsh", None),
    ],
)
def test_what_enroot_follows(image, repository):
    tag = container_words(Container(runtime="enroot", image=image), []).tag
    assert (None if tag is None else tag.repository) == repository


@pytest.mark.parametrize(
    ("image", "url"),
    [
        (URI, "https://nvcr.io/v2/nvidia/jax/manifests/24.04-py3"),
        ("docker://localhost:5000/jax", "https://localhost:5000/v2/jax/manifests/latest"),
        ("docker://ubuntu:22.04", "https://registry-1.docker.io/v2/library/ubuntu/manifests/22.04"),
        ("docker://docker.io/ubuntu", "https://registry-1.docker.io/v2/library/ubuntu/manifests/latest"),
        ("docker://docker.io/lab/asr:7", "https://registry-1.docker.io/v2/lab/asr/manifests/7"),
    ],
)
def test_where_a_tag_is_asked_for(image, url):
    tag = container_words(Container(runtime="apptainer", image=image), []).tag
    assert tag.url == url
    assert image.startswith(tag.repository)


@pytest.mark.parametrize(
    ("runtime", "path"), [("apptainer", "/a:b"), ("apptainer", "/a,b"), ("podman", "/a:b"), ("enroot", "/a b")]
)
def test_paths_that_a_runtime_cannot_mount(runtime, path):
    with pytest.raises(TemplateError, match=f"{runtime} cannot mount '{path}'"):
        container_words(Container(runtime=runtime, image="x"), [path])


@pytest.fixture(params=["apptainer", "singularity"])
def runtime(request):
    return request.param


@pytest.fixture
def log(node, tmp_path):
    node.environment["FAKE_LOG"] = f"{tmp_path}/runtime.log"
    return tmp_path / "runtime.log"


class Registry(http.server.BaseHTTPRequestHandler):
    """Answers who has a token, and tells the others where there is one, as public registries do. One has moved."""

    def do_HEAD(self):
        if self.path.startswith("/v2/lab/"):
            self.send_response(307)
            self.send_header("Location", self.path.replace("/v2/", "/moved/v2/"))
        elif self.headers["Authorization"] != "Bearer t0ken":
            place = f"https://localhost:{self.server.server_port}/token"
            self.send_response(401)
            self.send_header("WWW-Authenticate", f'Bearer realm="{place}",service="it",scope="repository:lab/jax:pull"')
        elif self.server.digest and "application/vnd.oci.image.index.v1+json" in self.headers.get_all("Accept"):
            self.send_response(200)
            self.send_header("Docker-Content-Digest", f"sha256:{self.server.digest}")
        else:
            self.send_response(500)
        self.end_headers()

    def do_GET(self):
        is_right = self.path == "/token?service=it&scope=repository%3Alab%2Fjax%3Apull"
        self.send_response(200 if is_right else 404)
        self.end_headers()
        self.wfile.write(b'{"token": "t0ken"}')

    def log_message(self, *_):
        """The output is the test's."""


@pytest.fixture
def registry(tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.certificate, server.digest = certificate, ""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@needs_root
class TestApptainer:
    @pytest.fixture
    def contained(self, node, runtime, log):
        node.with_fake(runtime)
        node.configure(container=Container(runtime=runtime, image=URI))
        return node

    def test_what_reaches_the_command(self, contained, tmp_path):
        """All variables but PATH; a configured LD_LIBRARY_PATH does; the tree, the workspace and a /tmp of its own."""
        data = tmp_path / "data"
        data.mkdir()
        contained.configure(directories=(os.fspath(data), "/nonexistent"))
        contained.environment["LD_LIBRARY_PATH"] = "/of/the/host"
        environment = {f"WORD_{number}": word for number, word in enumerate(HOSTILE_WORDS)}
        script = 'pwd; cat train.py; echo "$LD_LIBRARY_PATH ${PATH%%:*}"; ls /tmp'
        script += '; touch /tmp/mine "$DISPATCHER_ATTEMPT_DIR/x"'
        words = [
            "bash",
            "-c",
            f'{script}; for n in {{0..{len(HOSTILE_WORDS) - 1}}}; do v=WORD_$n; printf "%s\\0" "${{!v}}"; done',
        ]
        one = contained.run(
            "",
            arguments=words,
            code=archive_of({"train.py": "code\n"}),
            environment={**environment, "LD_LIBRARY_PATH": "/own"},
        )
        assert one.status == 0, one.output
        shown = one.output.split("\0")
        lines = shown[0].splitlines()
        begin = next(number for number, line in enumerate(lines) if line.startswith("/"))
        assert lines[begin].endswith("/tree")
        assert lines[begin + 1 : begin + 4] == ["code", "/own /usr/local/bin", tmp_path.parts[2]]
        assert [lines[begin + 4], *shown[1:-1]] == list(HOSTILE_WORDS)
        assert (one.directory / "x").exists()
        assert not Path("/tmp/mine").exists()
        assert contained.leftovers() == []

    @pytest.mark.parametrize(
        ("outside", "gpus", "flags"),
        [({"CUDA_VISIBLE_DEVICES": "2"}, "cuda", "--nv"), ({}, "cuda", "--nv"), ({}, "rocm", "--rocm"), ({}, "", "")],
    )
    def test_gpus(self, contained, log, outside, gpus, flags):
        contained.configure(gpus=gpus)
        contained.environment.pop("CUDA_VISIBLE_DEVICES", None)
        assert contained.run("", arguments=["true"], uses_gpus=True, outside=outside).status == 0
        assert log.read_text().splitlines()[-1].split(" ")[1] == flags
        assert contained.run("", number=2, arguments=["true"], uses_gpus=False).status == 0
        assert log.read_text().splitlines()[-1].split(" ")[1] == ""

    def test_status_and_signals(self, contained):
        assert contained.run("", arguments=["bash", "-c", "exit 75"]).status == 75
        script = "trap 'echo saving; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
        one = contained.start("", number=2, arguments=["bash", "-c", script]).says("ready")
        one.tell_group()
        assert one.ended().status == 9
        assert one.output.splitlines()[-1] == "saving"

    def test_an_image_is_converted_once(self, contained, log, tmp_path):
        """While one converts, another one waits for it and then finds the image."""
        until = tmp_path / "go"
        first = contained.start("echo ran", outside={"FAKE_PULL_UNTIL": os.fspath(until)})
        wait_until(lambda: log.exists() and "pull" in log.read_text(), "the first one converts")
        second = contained.start("echo ran", number=2)
        wait_until(lambda: "another attempt converts" in second.output, "the second one waits", 30)
        until.touch()
        assert (first.ended().status, second.ended().status) == (0, 0)
        assert log.read_text().count("pull") == 1
        (image,) = (tmp_path / "images").glob("*.sif")
        assert image.read_text() == f"SIF {URI}\n"
        assert [path.name for path in (tmp_path / "images").glob(".*")] == []

    def test_a_tag_that_moves(self, contained, runtime, log, registry, tmp_path):
        """It is believed for an hour. What begins later gets the new image, and the old one stays for others."""
        uri = f"docker://localhost:{registry.server_port}/lab/jax:24.04"
        contained.configure(container=Container(runtime=runtime, image=uri))
        contained.environment |= {"CURL_CA_BUNDLE": os.fspath(registry.certificate), "no_proxy": "localhost"}
        images, first, second = tmp_path / "images", "a" * 64, "b" * 64
        registry.digest = first
        assert contained.run("echo ran").status == 0
        registry.digest = second
        assert contained.run("echo ran", number=2).status == 0
        pulled = f"pull docker://localhost:{registry.server_port}/lab/jax@sha256:"
        assert [line for line in log.read_text().splitlines() if "pull" in line] == [f"{pulled}{first}"]
        (tag,) = images.glob("*.tag")
        os.utime(tag, (0, 0))
        old = images / f"{'c' * 64}.sif"
        old.write_text("SIF\n")
        os.utime(old, (0, 0))
        assert contained.run("echo ran", number=3).status == 0
        assert log.read_text().splitlines()[-2:] == [f"{pulled}{second}", f"exec  {second}.sif"]
        assert {path.name for path in images.glob("*.sif")} == {f"{first}.sif", f"{second}.sif"}
        # A registry that does not answer keeps nobody from what there is.
        registry.digest = ""
        os.utime(tag, (0, 0))
        assert contained.run("echo ran", number=4).status == 0
        assert log.read_text().splitlines()[-1] == f"exec  {second}.sif"

    def test_a_killed_conversion_leaves_no_image(self, contained, log, tmp_path):
        first = contained.start("echo ran", outside={"FAKE_PULL_UNTIL": "/nonexistent"})
        wait_until(lambda: log.exists() and "pull" in log.read_text(), "the first one converts")
        first.tell_group(signal.SIGKILL)
        first.ended()
        assert not list((tmp_path / "images").glob("*.sif"))
        assert contained.run("echo ran", number=2).status == 0
        assert log.read_text().count("pull") == 2

    def test_a_conversion_that_is_stopped(self, contained, log, tmp_path):
        one = contained.start("echo ran", outside={"FAKE_PULL_UNTIL": "/nonexistent"})
        wait_until(lambda: log.exists() and "pull" in log.read_text(), "it converts")
        one.process.send_signal(signal.SIGTERM)
        one.ended()
        assert (one.status, one.has_failed_setup, one.first) == (143, False, "signal TERM")
        assert [path.name for path in (tmp_path / "images").iterdir() if path.suffix not in (".lock", ".tag")] == []

    def test_an_image_that_cannot_be_had(self, contained):
        uri = "docker://absent.example/it's:1"
        contained.configure(container=Container(runtime=contained.setup.container.runtime, image=uri))
        one = contained.run("echo ran")
        assert (one.status, one.has_failed_setup) == (1, True)
        assert one.output.splitlines()[-1] == f"dispatcher: error: {NODE}: the image {uri} cannot be converted"
        assert "manifest unknown" in one.output

    def test_no_runtime(self, contained):
        contained.path.clear()
        one = contained.run("echo ran")
        assert one.has_failed_setup
        assert f"{contained.setup.container.runtime}: there is no such program on PATH=" in one.output


class TestEnroot:
    @pytest.fixture
    def contained(self, log, tmp_path):
        (tmp_path / "plain").mkdir()
        (tmp_path / "containers").mkdir()
        # Its mounts know no blanks.
        made = Node(tmp_path / "plain", root="a'b$(touch", work="work'dir")
        made.environment |= {"FAKE_LOG": os.fspath(log), "FAKE_ENROOT": f"{tmp_path}/containers"}
        made.with_fake("enroot")
        made.configure(container=Container(runtime="enroot", image=URI))
        yield made
        made.close()
        assert list((tmp_path / "containers").iterdir()) == []

    def test_what_reaches_the_command(self, contained, log):
        words = [word for word in HOSTILE_WORDS if "\n" not in word]
        environment = {f"WORD_{number}": word for number, word in enumerate(words)}
        loop = f'for n in {{0..{len(words) - 1}}}; do v=WORD_$n; printf "%s\\0" "${{!v}}"; done'
        one = contained.run(
            "",
            arguments=["bash", "-c", f"echo $PWD $DISPATCHER_CODE_COMMIT; {loop}; exit 3"],
            code=archive_of({"x": ""}),
            environment=environment,
            outside={"FROM_OUTSIDE": "two\nlines"},
        )
        assert one.status == 3, one.output
        first, *others = one.output.split("\0")
        assert first.splitlines()[-1] == words[0]
        assert first.splitlines()[-2].endswith("/tree abc")
        assert others[:-1] == words[1:]
        here = contained.work / "dispatcher-work" / contained.setup.work_id / "job.1" / NODE
        made = log.read_text().splitlines()
        assert made == [f"import {URI}", "create", f"start /tmp {contained.root} {here}", "remove"]

    @pytest.mark.parametrize(("outside", "devices"), [({"CUDA_VISIBLE_DEVICES": "2,3"}, "2,3"), ({}, "all")])
    def test_gpus(self, contained, outside, devices):
        contained.environment.pop("CUDA_VISIBLE_DEVICES", None)
        words = ["bash", "-c", 'echo "$NVIDIA_VISIBLE_DEVICES ${CUDA_VISIBLE_DEVICES-unset}"']
        one = contained.run("", arguments=words, uses_gpus=True, outside=outside)
        assert one.output.splitlines()[-1] == f"{devices} {'0,1' if outside else 'unset'}"
        one = contained.run("", number=2, arguments=words, outside={"CUDA_VISIBLE_DEVICES": ""})
        assert one.output == "void \n"

    def test_a_tag_that_moves(self, contained, log):
        """As with the others; the registry is asked by enroot, which has the logins."""
        contained.environment["FAKE_DIGEST"] = first = "a" * 64
        assert contained.run("echo ran").status == 0
        contained.environment["FAKE_DIGEST"] = second = "b" * 64
        assert contained.run("echo ran", number=2).status == 0
        imported = f"import {URI.rpartition(':')[0]}@sha256:"
        assert [line for line in log.read_text().splitlines() if "import" in line] == [f"{imported}{first}"]
        images = Path(contained.setup.images)
        (tag,) = images.glob("*.tag")
        os.utime(tag, (0, 0))
        assert contained.run("echo ran", number=3).status == 0
        assert [line for line in log.read_text().splitlines() if "import" in line][1:] == [f"{imported}{second}"]
        assert {path.name for path in images.glob("*.sqsh")} == {f"{first}.sqsh", f"{second}.sqsh"}
        contained.environment["FAKE_DIGEST"] = ""
        os.utime(tag, (0, 0))
        one = contained.run("echo ran", number=4)
        assert one.status == 0 and log.read_text().count("import") == 2
        assert f"enroot (releases before 4.0 cannot) did not tell which image {URI} is now" in one.output

    def test_an_enroot_that_tells_no_digest(self, contained, log):
        assert "did not tell which image" not in contained.run("echo ran").output
        (tag,) = Path(contained.setup.images).glob("*.tag")
        os.utime(tag, (0, 0))
        assert "did not tell which image" in contained.run("echo ran", number=2).output
        assert [line for line in log.read_text().splitlines() if "import" in line] == [f"import {URI}"]

    def test_a_killed_script_leaves_no_container(self, contained, tmp_path):
        one = contained.start("", arguments=["bash", "-c", "echo ready; sleep 60"]).says("ready")
        assert len(list((tmp_path / "containers").iterdir())) == 1
        one.tell_group(signal.SIGKILL)
        one.ended()
        wait_until(lambda: not list((tmp_path / "containers").iterdir()), "the container is removed")

    def test_an_image_that_is_no_image(self, contained, tmp_path):
        (tmp_path / "x.sqsh").write_text("nothing")
        contained.configure(container=Container(runtime="enroot", image=f"{tmp_path}/x.sqsh"))
        one = contained.run("true")
        assert one.has_failed_setup
        assert one.output.splitlines()[-1].endswith(f"enroot cannot make a container of {tmp_path}/x.sqsh")

    def test_values_that_it_cannot_take_are_refused(self, contained):
        with pytest.raises(TemplateError, match="enroot cannot pass TWO_LINES, whose value has a line break"):
            contained.run("true", environment={"TWO_LINES": "two\nlines"})


GPUS = [
    ({"CUDA_VISIBLE_DEVICES": "2,3"}, "nvidia.com/gpu=2 nvidia.com/gpu=3", "0,1"),
    ({"CUDA_VISIBLE_DEVICES": "GPU-ab-1"}, "nvidia.com/gpu=GPU-ab-1", "GPU-ab-1"),
    ({}, "nvidia.com/gpu=all", "unset"),
    ({"CUDA_VISIBLE_DEVICES": ""}, "", ""),
    # SLURM hides the other GPUs of the node, and numbers those of the job from 0.
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,6"}, "nvidia.com/gpu=4 nvidia.com/gpu=6", "0,1"),
    ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "4,6"}, "nvidia.com/gpu=0", "0"),
]


@pytest.mark.parametrize(("outside", "devices", "inside"), GPUS)
def test_gpus_of_podman(node, outside, devices, inside):
    node.with_fake("podman")
    node.configure(container=Container(runtime="podman", image="x:1"))
    node.environment.pop("CUDA_VISIBLE_DEVICES", None)
    one = node.run("", arguments=["true"], uses_gpus=True, outside=outside)
    assert one.output == f"{devices}\ninside {inside}\n"


def test_gpus_of_podman_with_rocm(node):
    node.with_fake("podman")
    node.configure(container=Container(runtime="podman", image="x:1"), gpus="rocm")
    assert node.run("", arguments=["true"], uses_gpus=True).output.startswith("/dev/kfd /dev/dri\n")
    assert node.run("", number=2, arguments=["true"]).output.startswith("\n")
