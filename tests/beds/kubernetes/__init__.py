"""The parts of the Kubernetes bed (`beds.k8s`).

- `control_plane.py` runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler, all of them as they are;
- `nodes.py` runs nodes. A node is `kubelet/`: the kubelet itself, with hardware that we name, and below it, where
  others have containerd, a runtime of ours that runs containers as local processes (`container/`);
- `dns.py` tells pods the addresses of services, as CoreDNS does;
- `faults.py` is what goes wrong between kubectl and the API server;
- `api.py` is what the bed itself asks the API server with; tests and the product use `kubectl`;
- `build.py` builds the programs from Debian's source packages, once per user: `scripts/install-beds` calls it.

So all that a pod's status says, its events, volumes, logs, `kubectl exec` and `cp` are the real thing. What is not: all
images are this machine's tree (with an own layer for each container; the tests' directories hidden), and one with
"missing" in its name cannot be pulled; limits of CPU and memory are not kept (`K8sBed.oom_kill`, `K8sBed.evict`); a
service's own address leads nowhere, its name leads to its pods; there are no terminals (`exec -t`), no `attach`, no
`port-forward` and no network policies. The kubelet looks at its containers five times a second instead of once.
"""
