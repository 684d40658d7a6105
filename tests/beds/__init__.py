"""Hosts that share a directory over a real network filesystem, on one machine: what tests of the protocol run on.

    def test_something(nfs):
        a, b = nfs.hosts("v4.2")                        # a new directory of that mount, as each host sees it
        done = a.run(["dispatcher", "status"], cwd=a.root)
        pod = b.start(["dispatcher", "--pod", "b", "--slots", "1"], cwd=b.root)
        pod.wait_for_output("...")

- `nfs`: two client kernels and a third that is the file server. `hosts("v4.2")`, `"v4.0"`, `"v3"`, `"v3-nolock"`, with
  further mount options in `options="noac"`; `reboot_server()`; `on_server(a)` is the same directory at the server.
- `sshfs`: two sets of namespaces. `hosts()`, or `hosts("dir_cache=no")` with sshfs's options; `below(a)` is the same
  directory without sshfs, for the test's own process.
- `gluster`: two sets of namespaces, each with its own FUSE mount of a GlusterFS volume. `hosts("defaults")`,
  `"caches-on"` or `"caches-off"`.
- `lockfs`: two sets of namespaces. `hosts("ENOSYS")`, `"ENOLCK"`, `"EOPNOTSUPP"`, `"EIO"`, `"local"`, `"nop"` or
  `"pass"`; `below(a)`.

A host (`hosts.Host`) has `name`, `root`, `run`, `start`, `run_python`, `start_python`, `read_text`, `write_text`,
`names`, `power_cut` and `boot`; one of `nfs` also `cut` and `restore`. Relative paths start at `root`. What was started
(`hosts.Process`) has `pid`, `poll`, `wait`, `output`, `wait_for_output`, `signal`, `terminate` and `kill`.

A bed is made once per test run, and a test that uses its fixture gets the marker of the same name. After each test
everything that was started on its hosts is killed, and hosts that are off, cut off or stuck are brought back. The
classes (`nfs.NfsBed(lease_s=...)`, `sshfs.SshfsBed`, `lockfs.LockfsBed`) are context managers that know nothing of
pytest, for a bed with other settings or for a benchmark.

On an `nfs` host starting a process costs 80 ms and starting Python half a second, so that limits in tests must be wide.
What the host's agent can look at itself (`names`, `read_text`, `wait_for_output`) costs next to nothing.
There NFSv4 has its own ways with a host that vanishes: for up to two leases even to open a file that it had open hangs.

What is needed is in `needs.py`: root, namespaces, Debian packages that `scripts/install-beds` installs. It also boots
each bed once (`trials.py`). The tests of one that cannot work are skipped with the reason, in CI they fail with it.
Nothing is left on the machine, see `bed.py`.
"""
