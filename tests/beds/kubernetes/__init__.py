"""The parts of the Kubernetes bed (`beds.k8s`).

- `build.py` builds the control plane and the node's programs from Debian's source package, once per machine;
- `control_plane.py` runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler;
- `api.py` is what the bed itself asks the API server with; tests and the product use `kubectl`.
"""
