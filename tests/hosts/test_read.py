"""Descriptions of hosts and clusters: what may be written, and that every fault is named with its place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import load_config
from dispatcher.errors import ConfigError
from dispatcher.hosts.types import (
    Cluster,
    Container,
    Hosts,
    Partition,
    PbsHost,
    PbsQueue,
    PlainHost,
    SlurmHost,
    TpuHost,
    VolcanoHost,
)
from dispatcher.workspace import Layout

LAB = Path(__file__).parent / "lab.yaml"


def written(root: Path, text: str) -> Layout:
    (root / "dispatcher.yaml").write_text(text)
    return Layout(root)


def loaded(root: Path, text: str) -> Hosts:
    return load_config(written(root, text)).hosts


def faults(root: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(written(root, text))
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"{root / 'dispatcher.yaml'}: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return [line.strip() for line in lines]


def test_without_hosts_there_are_none(tmp_path: Path) -> None:
    assert load_config(Layout(tmp_path)).hosts == Hosts()
    assert loaded(tmp_path, "lock: auto\n") == Hosts()
    assert loaded(tmp_path, "clusters:\nhosts:\npriority:\ngres_mapping:\n") == Hosts()


def test_the_smallest_description_of_a_cluster(tmp_path: Path) -> None:
    """The dispatcher runs on the login node, and the workspace stands on the cluster's own filesystem."""
    hosts = loaded(tmp_path, "hosts:\n  slurm:\n    type: slurm\n")
    assert hosts.hosts == {"slurm": SlurmHost(name="slurm", cluster="slurm")}
    assert hosts.cluster_of(hosts.hosts["slurm"]) == Cluster(name="slurm")


def test_a_file_of_a_lab_works_unchanged(tmp_path: Path) -> None:
    hosts = load_config(Layout(tmp_path), LAB).hosts
    assert [host.name for host in hosts.in_order()] == [
        *("workstation", "cpu-box", "hpc-login", "my-tpu-v4", "gpu-cluster"),
    ]
    assert hosts.gres_types("h100") == ("h100_80gb",) and hosts.gres_types("l40s") == ("l40s",)
    assert hosts.clusters["hpc"] == Cluster(
        name="hpc",
        root="/mnt/juicefs/lab",
        work="/scratch/lab",
        log="/scratch/lab/logs",
        share="/scratch/lab/.dispatch",
        mount="redis://:password@redis.example.com:6379/0",
        cache_size="100G",
        cache_dir="/scratch/juicefs-cache",
        all_squash="1000:1000",
        uv_dir="/scratch/uv-cache",
    )
    assert hosts.hosts["workstation"] == PlainHost(
        name="workstation",
        cluster="local",
        ssh="gpu-workstation",
        chips={"h100": 4},
        uv_groups=("cuda12",),
        env={"CUDA_VISIBLE_DEVICES": "0,1,2,3", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"},
    )
    assert hosts.hosts["cpu-box"] == PlainHost(
        name="cpu-box", cluster="local", ssh="user@cpu-box", chips={}, uv_groups=("cpu",)
    )
    assert hosts.hosts["hpc-login"] == SlurmHost(
        name="hpc-login",
        cluster="hpc",
        ssh="hpc",
        partitions=(
            Partition("gpu", default=True),
            Partition("gpu-preempt"),
            Partition("big", constraint="a100|h100"),
        ),
        cpu_partitions=("cpu",),
        account="4711",
        qos="normal",
        mem="65536M",
        exclude=("node001", "node[002-004]"),
        chips={"h100": 8},
        uv_groups=("cuda12",),
    )
    tpu, volcano = hosts.hosts["my-tpu-v4"], hosts.hosts["gpu-cluster"]
    assert isinstance(tpu, TpuHost) and tpu.env == {"JAX_PLATFORMS": "tpu"}
    assert tpu.metadata == {"startup-script": "#!/bin/bash\necho hello\n"} and tpu.spot is True
    assert isinstance(volcano, VolcanoHost) and volcano.chips == {"h100": 8} and volcano.num_nodes == 4


def test_amounts_of_kubernetes(tmp_path: Path) -> None:
    words = "type: volcano, image: i, pvc_name: p, pvc_mount_path: /p"
    host = loaded(tmp_path, f"hosts: {{k: {{{words}, cpu: 4, memory: 1.5Gi, shm_size: 64Gi, cpu_cpu: 0.5}}}}").hosts[
        "k"
    ]
    assert isinstance(host, VolcanoHost)
    assert (host.cpu, host.memory, host.shm_size, host.cpu_cpu) == ("4", "1.5Gi", "64Gi", "0.5")


@pytest.mark.parametrize("path", ["/", "/a b", "~", "~/lab", "$SCRATCH", "$SCRATCH/lab", "/s/${USER}/x", "/ünter/é"])
def test_paths(tmp_path: Path, path: str) -> None:
    assert loaded(tmp_path, f"clusters: {{a: {{work: '{path}'}}}}").clusters["a"].work == path


@pytest.mark.parametrize("path", ["", "a/b", "./a", "~other/a", "/a/$(id)", "/a/`id`", "$", "${A", "$A`id`", 3])
def test_paths_that_are_not_absolute_or_need_a_shell_are_refused(tmp_path: Path, path: object) -> None:
    (fault,) = faults(tmp_path, f"clusters: {{a: {{work: {json.dumps(path)}}}}}")
    assert fault.startswith(f"clusters.a.work = {json.dumps(path)}: expected an absolute path of the host")


def test_keys_that_mean_nothing_here_are_reported_without_their_values(tmp_path: Path) -> None:
    unused = load_config(Layout(tmp_path), LAB).hosts.unused
    assert [line.partition(":")[0] for line in unused] == [
        *("mount", "clusters.local.wandb", "clusters.local.wandb_project"),
    ]
    assert not any("an-api-key" in line for line in unused)


def test_everything_that_may_be_written(tmp_path: Path) -> None:
    hosts = loaded(
        tmp_path,
        """
clusters:
  pbs1: {data: /d, checkpoints: /c/, results: /r, status: /s, cache_size: 1024, all_squash: 1000, env: {A: 1},
    uv_installer: https://example.org/install.sh}
hosts:
  login1:
    type: slurm
    partitions: gpu
    mem: 0
    wckey: speech
    sbatch_args: --comment 'two words' --nice
    slot_type: rocm
    tres_supported: false
    gres_supported: false
    gpu_type: mi300
    slots_per_node: 8
    modules: [cuda/12.4, gcc]
    container: {runtime: apptainer, image: docker://a/b:1, mounts: /data, options: [--writable-tmpfs]}
    max_in_flight: 100
    submits_per_minute: 30
  2:
    type: pbs
    ssh: hpc2
    cluster: pbs1
    queues: [workq, gpuq]
    account: a
    project: p
    pbsbatch_args: [-m, n]
    slot_type: cpu
    gres_supported: false
    slots_per_node: 4
priority: [2]
gres_mapping: {4090: [gpu:rtx4090, rtx_4090, rtx4090]}
""",
    )
    assert hosts.clusters["pbs1"] == Cluster(
        name="pbs1",
        data="/d",
        checkpoints="/c",
        results="/r",
        cache_size="1024",
        all_squash="1000",
        uv_installer="https://example.org/install.sh",
        env={"A": "1"},
    )
    assert hosts.unused == ("clusters.pbs1.status: nothing reads it",)
    assert hosts.hosts["login1"] == SlurmHost(
        name="login1",
        cluster="login1",
        partitions=(Partition("gpu"),),
        mem="0",
        wckey="speech",
        sbatch_args=("--comment", "two words", "--nice"),
        slot_type="rocm",
        tres_supported=False,
        gres_supported=False,
        gpu_type="mi300",
        slots_per_node=8,
        modules=("cuda/12.4", "gcc"),
        container=Container(
            runtime="apptainer", image="docker://a/b:1", mounts=("/data",), options=("--writable-tmpfs",)
        ),
        max_in_flight=100,
        submits_per_minute=30,
    )
    assert hosts.hosts["2"] == PbsHost(
        name="2",
        cluster="pbs1",
        ssh="hpc2",
        queues=(PbsQueue("workq"), PbsQueue("gpuq")),
        account="a",
        project="p",
        pbsbatch_args=("-m", "n"),
        slot_type="cpu",
        gres_supported=False,
        slots_per_node=4,
    )
    assert hosts.priority == ("2",) and hosts.gres_types("4090") == ("rtx4090", "rtx_4090")


def test_all_faults_are_listed_at_once_with_their_places(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        """
poll_intervall: 3
clusters:
  hpc: {root: data, wrok: /scratch, mount: [secret], all_squash: nobody, cache_size: big, env: {1x: a, B: true}}
  a b: {}
  mounted: {mount: "redis://:secret@host"}
  variables: {work: /scratch/$(id), log: "$1x"}
hosts:
  login1:
    type: slurm
    cluster: hcp
    partitions: [gpu, {name: "a b", default: 3}, {default: true}, 7.5]
    partitons: [gpu]
    mem: lots
    slot_type: cudda
    tres_supported: yes
    slots_per_node: 0
    sbatch_args: [--nice, 3.5, "a\\nb"]
    account: -x
    uv_groups: [--all]
    chips: {h100: many, l40: -1}
    container: {runtime: docker, mounts: [3.5]}
    queues: [a]
  both: {type: slurm, clusters: "alpha,beta"}
  twice: {type: slurm, partitions: [{name: a, default: true}, {name: b, default: true}]}
  ws1: {chips: [h100]}
  option: {ssh: -oProxyCommand=x}
  local: {type: slurm}
  auto: {type: slurm}
  odd: {type: slrum}
  number: {type: 3}
  list: [ssh]
  bad/name: {ssh: x}
priority: [login1, ws2, 3.5, [a]]
gres_mapping: {h100: [], l40: [a, 3.5]}
""",
    )
    assert found == (Path(__file__).parent / "faults.txt").read_text().splitlines()
    assert not [line for line in found if "secret" in line]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clusters: [hpc]", "clusters: expected names of clusters, each with its keys"),
        ("hosts: login1", 'hosts = "login1": expected names of hosts, each with its keys'),
        ("priority: {a: 1}", 'priority = {"a": 1}: expected a name of letters'),
        ("gres_mapping: [h100]", 'gres_mapping = ["h100"]: expected GRES types by chip'),
        *(
            (
                f"hosts: {{t: {{type: tpu, zone: z, accelerator_type: {written}}}}}",
                f"hosts.t.accelerator_type = {shown}: expected a TPU as Google calls it, such as v4-32",
            )
            for written, shown in [("v4", '"v4"'), ("v4-0", '"v4-0"'), ("v4-8;x", '"v4-8;x"'), ("4", "4")]
        ),
        (
            "hosts: {t: {type: tpu, zone: z, accelerator_type: v4-8, node_count: 2}}",
            "hosts.t.node_count = 2: a host is one TPU VM: one job over several slices (multislice) is not supported",
        ),
        (
            "hosts: {t: {type: tpu, zone: z, accelerator_type: v4-8, dead_after: nie}}",
            'hosts.t.dead_after = "nie": ',
        ),
        (
            "poll_interval: 1m\nhosts: {t: {type: tpu, zone: z, accelerator_type: v4-8, dead_after: 479}}",
            "hosts.t.dead_after = 479: expected 8m00s or more, 8 times poll_interval: a dispatcher",
        ),
        (
            "hosts: {t: {type: tpu, zone: z, accelerator_type: v4-8, reservation: r, spot: true}}",
            "hosts.t: `spot` and `reservation` exclude each other",
        ),
        *(
            (
                f"hosts: {{h: {{type: {kind}, {key}: [a, b, {written}]}}}}",
                f'hosts.h.{key}[2] = {shown}: "a" is named twice',
            )
            for kind, key, written, shown in [
                ("slurm", "partitions", "{name: a, slot_type: cpu}", '{"name": "a", "slot_type": "cpu"}'),
                ("slurm", "cpu_partitions", "a", '"a"'),
                ("slurm", "exclude", "a", '"a"'),
                ("slurm", "uv_groups", "a", '"a"'),
                ("pbs", "queues", "a", '"a"'),
                ("pbs", "cpu_queues", "a", '"a"'),
                ("tpu, zone: z, accelerator_type: v4-8", "tags", "a", '"a"'),
            ]
        ),
        ("hosts: {a: {ssh: a}, b: {ssh: b}}\npriority: [a, b, a]", 'priority[2] = "a": "a" is named twice'),
        ("hosts: {h: {ssh: h, chips: {h100: 0}}}", "hosts.h.chips.h100 = 0: expected a whole number, 1 or more"),
        (
            "hosts: {h: {type: slurm, clusters: [x, y]}}",
            'hosts.h.clusters = ["x", "y"]: expected the name of one cluster: describe a host for each',
        ),
        *(
            (f"clusters: {{c: {{uv_installer: {written}}}}}", f'clusters.c.uv_installer = "{written}": {expected}')
            for written, expected in [
                ("bin/uv", "expected a path of the host, such as /opt/installer.sh, or an address"),
                (
                    "https://e.org/uv#sha256=12",
                    "expected #sha256= and 64 hexadecimal digits after the path or the address",
                ),
                ("http://e.org/uv", "expected an address that begins with https://, or #sha256= and the digest after"),
            ]
        ),
        *(
            (
                f"hosts: {{k: {{type: volcano, image: i, pvc_name: p, pvc_mount_path: /p, {key}: {written}}}}}",
                f"hosts.k.{key} = {shown}: expected an amount such as 4, 500m or 64Gi",
            )
            for key, written, shown in [
                ("cpu", "-1", "-1"),
                ("memory", "64GB", '"64GB"'),
                ("shm_size", "0", "0"),
                ("cpu_cpu", "two", '"two"'),
                ("cpu_memory", "[1]", "[1]"),
            ]
        ),
        ("priority: [ws1]", 'priority[0] = "ws1": there is no such host (none is described)'),
        ("hosts: {a: {ssh: a, cluster: b}}", 'hosts.a.cluster = "b": there is no such cluster (none is described)'),
    ],
)
def test_a_key_with_another_kind_of_value(tmp_path: Path, text: str, expected: str) -> None:
    (found,) = faults(tmp_path, text)
    assert found.startswith(expected)


def test_an_address_without_its_scheme(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, "clusters: {c: {uv_installer: astral.sh/uv/install.sh}}")
    assert found.endswith("(did you mean 'https://astral.sh/uv/install.sh'?)")


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, 'clusters: {c: {uv_installer: "https://me:secret@e.org/uv#sha256=12"}}')
    assert found.startswith("clusters.c.uv_installer: expected #sha256=") and "secret" not in found


def test_faults_within_a_key_of_a_method_have_their_place(tmp_path: Path) -> None:
    found = faults(tmp_path, 'methods: {m: {slurm: {partition: "", slots_per_node: 0}}}')
    assert [fault.partition(":")[0] for fault in found] == [
        'methods.m.slurm.partition = ""',
        "methods.m.slurm.slots_per_node = 0",
    ]


BASE = """
clusters: {hpc: {work: /old, root: /r}, other: {work: /w}}
hosts:
  login1: {type: slurm, cluster: hpc, account: old}
  ws1: {ssh: ws1, cluster: other}
priority: [ws1]
gres_mapping: {h100: a, l40: b}
"""


def both(root: Path, text: str) -> Hosts:
    (root / "hosts.yaml").write_text(text)
    return load_config(written(root, BASE), root / "hosts.yaml").hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clusters: [{mount: 'redis://:secret@h/1'}]", "clusters: expected names of clusters"),
        ("clusters: {hpc: [{mount: 'redis://:secret@h/1'}]}", "clusters.hpc: expected keys and values"),
        (
            "clusters: {hpc: {root: /mnt, mount: 'postgres://me@h/db?sslmode=disable&password=secret'}}",
            "clusters.hpc.mount: write the password before the host",
        ),
    ],
)
def test_no_message_shows_a_password(tmp_path: Path, text: str, expected: str) -> None:
    (line,) = faults(tmp_path, text)
    assert line.startswith(expected)
    assert "secret" not in line


def test_the_keys_of_a_tpu(tmp_path: Path) -> None:
    host = load_config(
        written(
            tmp_path,
            """
hosts:
  t:
    type: tpu
    zone: z
    accelerator_type: v4-8
    node_count: 1
    dead_after: never
    reserved: true
    reservation: projects/p/reservations/r
    data_disk: [source=a, source=b]
    tags: [x]
    create_args: --description "it's mine"
""",
        )
    ).hosts.hosts["t"]
    assert isinstance(host, TpuHost)
    assert (host.dead_after_s, host.reserved, host.reservation) == (None, True, "projects/p/reservations/r")
    assert (host.data_disk, host.tags) == (("source=a", "source=b"), ("x",))
    assert host.create_args == ("--description", "it's mine")


def test_a_file_of_hosts_wins_by_name(tmp_path: Path) -> None:
    hosts = both(
        tmp_path,
        """
clusters: {hpc: {work: /new}}
hosts:
  login1: {type: slurm, cluster: hpc, qos: new}
  ws2: {ssh: ws2, cluster: other}
priority: [login1, ws1]
gres_mapping: {h100: c}
""",
    )
    assert hosts.clusters == {"hpc": Cluster(name="hpc", work="/new"), "other": Cluster(name="other", work="/w")}
    login1 = hosts.hosts["login1"]
    assert isinstance(login1, SlurmHost) and (login1.account, login1.qos) == (None, "new")
    assert [host.name for host in hosts.in_order()] == ["login1", "ws1", "ws2"]
    assert dict(hosts.gres_mapping) == {"h100": ("c",), "l40": ("b",)}


def test_a_file_of_hosts_without_priority_leaves_it(tmp_path: Path) -> None:
    assert both(tmp_path, "hosts: {ws2: {ssh: ws2}}").priority == ("ws1",)
    assert both(tmp_path, "").hosts.keys() == {"login1", "ws1"}


def test_a_file_of_hosts_without_dispatcher_yaml(tmp_path: Path) -> None:
    config = load_config(Layout(tmp_path), LAB)
    assert config.matrix == tmp_path / "matrix" / "matrix.json" and len(config.hosts.hosts) == 5


def test_faults_of_both_files_are_listed_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: {a: {ssh: a, cluster: hcp}}\nlock: auto\n")
    layout = written(tmp_path, "lock: none\nclusters: {hpc: {work: relative}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(layout, tmp_path / "hosts.yaml")
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/dispatcher.yaml: 2 problems",
        '  lock = "none": expected one of auto, flock, lockf, hardlink',
        '  clusters.hpc.work = "relative": expected an absolute path of the host, such as /scratch/lab, '
        "~/lab or $SCRATCH/lab",
        f"{tmp_path}/hosts.yaml: 2 problems",
        "  lock: unknown key (known: clusters, hosts, priority, gres_mapping)",
        "  hosts.a.cluster = \"hcp\": there is no such cluster (did you mean 'hpc'?)",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no such file"),
        ("- a\n", "expected keys such as clusters and hosts"),
        ("hosts: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
    ],
)
def test_a_file_of_hosts_that_cannot_be_used(tmp_path: Path, content: str | None, expected: str) -> None:
    path = tmp_path / "hosts.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=expected):
        load_config(Layout(tmp_path), path)


def test_the_reader_is_loaded_only_where_there_are_hosts(tmp_path: Path) -> None:
    program = (
        "import sys; from dispatcher.config import load_config; from dispatcher.workspace import Layout; "
        "load_config(Layout(sys.argv[1])); "
        "print('dispatcher.hosts.read' in sys.modules)"
    )

    def is_loaded(text: str) -> str:
        written(tmp_path, text)
        run = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
        return run.stdout.strip()

    assert is_loaded("lock: auto\n") == "False"
    assert is_loaded("hosts: {a: {ssh: a}}\n") == "True"


def read_container(root: Path, value: Any) -> Container | None:
    host = loaded(root, f"hosts: {{a: {{ssh: a, container: {value}}}}}").hosts["a"]
    return host.container


def test_containers(tmp_path: Path) -> None:
    assert read_container(tmp_path, "") is None
    assert read_container(tmp_path, "{runtime: podman, image: 'a:1', options: '-v \"/a b\" --rm'}") == Container(
        runtime="podman", image="a:1", options=("-v", "/a b", "--rm")
    )
    assert faults(tmp_path, "hosts: {a: {ssh: a, container: {runtim: podman, image: -x}}}") == [
        "hosts.a.container.runtim: unknown key (did you mean 'runtime'?)",
        "hosts.a.container.runtime: is missing",
        "hosts.a.container.image = \"-x\": expected a name; one that begins with '-' would be taken for an option",
    ]
    assert faults(tmp_path, "hosts: {a: {ssh: a, container: image}}") == [
        'hosts.a.container = "image": expected keys such as '
        "{runtime: apptainer, image: docker://nvcr.io/nvidia/jax:24.04-py3}",
    ]


def test_variables_that_say_which_gpus_are_used(tmp_path: Path) -> None:
    read = loaded(tmp_path, "hosts: {a: {ssh: a, env: {CUDA_VISIBLE_DEVICES: ''}}, b: {ssh: b}}").hosts
    assert isinstance(read["a"], PlainHost) and read["a"].visible_gpus == ()
    assert isinstance(read["b"], PlainHost) and read["b"].visible_gpus is None
    (of_host,) = faults(tmp_path, "hosts: {a: {ssh: a, env: {CUDA_VISIBLE_DEVICES: MIG-1}}}")
    assert of_host.startswith("hosts.a.env") and "expected the indices" in of_host
    of_scheduler = "hosts: {a: {type: slurm, env: {CUDA_VISIBLE_DEVICES: '%s'}}}"
    assert loaded(tmp_path, of_scheduler % "").hosts["a"].env == {"CUDA_VISIBLE_DEVICES": ""}
    (fault,) = faults(tmp_path, of_scheduler % "0,1")
    assert fault.endswith('CUDA_VISIBLE_DEVICES is "0,1": which GPUs a job gets is decided by the scheduler')
    (of_cluster,) = faults(tmp_path, "clusters: {c: {env: {CUDA_VISIBLE_DEVICES: '0'}}}")
    assert of_cluster.endswith("CUDA_VISIBLE_DEVICES is of one host: set it in `env` of the host")


def test_settings_of_partitions_and_queues(tmp_path: Path) -> None:
    """Of those keys that say what jobs ask for; they count in place of the host's."""
    hosts = loaded(
        tmp_path,
        """
hosts:
  a:
    type: slurm
    partitions:
      - {name: cpu, slot_type: cpu, mem: 8G}
      - {name: old, gpu_type: k80, slots_per_node: 2, sbatch_args: --nice}
    job_project_source: label:team
  b:
    type: pbs
    queues: [gpu, {name: whole, gres_supported: false, slots_per_node: 8, pbsbatch_args: [-l, select=1:fs=home]}]
    cpu_queues: cpu
    job_project_source: user
""",
    )
    assert hosts.hosts["a"] == SlurmHost(
        name="a",
        cluster="a",
        partitions=(
            Partition("cpu", slot_type="cpu", mem="8192M"),
            Partition("old", gpu_type="k80", slots_per_node=2, sbatch_args=("--nice",)),
        ),
        job_project_source="label:team",
    )
    assert hosts.hosts["b"] == PbsHost(
        name="b",
        cluster="b",
        queues=(
            PbsQueue("gpu"),
            PbsQueue("whole", gres_supported=False, slots_per_node=8, pbsbatch_args=("-l", "select=1:fs=home")),
        ),
        cpu_queues=("cpu",),
        job_project_source="user",
    )


def test_faults_of_queues_and_of_the_source_of_projects(tmp_path: Path) -> None:
    text = "hosts: {b: {type: pbs, queues: [{name: gpu, slot_typ: cpu}], job_project_source: project}}\n"
    assert faults(tmp_path, text) == [
        "hosts.b.queues[0].slot_typ: unknown key (did you mean 'slot_type'?)",
        'hosts.b.job_project_source = "project": expected workspace, user, label or label:KEY, a key of entries',
    ]


@pytest.mark.parametrize("key", ["uv_installer", "juicefs_installer"])
def test_what_installs_a_program(tmp_path: Path, key: str) -> None:
    digest = "#sha256=" + "0a" * 32
    for text in ("/opt/install.sh", "~/uv.tar.gz", f"$SHARE/uv{digest}", f"https://example.org/x.sh{digest}"):
        found = loaded(tmp_path, json.dumps({"clusters": {"a": {key: text}}}))
        assert getattr(found.clusters["a"], key) == text
    for text in ("install.sh", "ftp://example.org/x", "https://example.org/x#sha256=12", "/opt/x#y", "/a b"):
        (fault,) = faults(tmp_path, json.dumps({"clusters": {"a": {key: text}}}))
        assert fault.startswith(f"clusters.a.{key}")


def test_a_tpu_vm_is_paid_for_in_one_way(tmp_path: Path) -> None:
    text = "hosts: {v: {type: tpu, zone: z, accelerator_type: v4-8, spot: true, reserved: true, preemptible: false}}\n"
    assert faults(tmp_path, text) == ["hosts.v: `spot` and `reserved` exclude each other: a VM is one of them"]
