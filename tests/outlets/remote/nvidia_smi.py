"""A stand-in for nvidia-smi that answers what the agent and node.sh ask, and refuses all else as the real one does."""

from __future__ import annotations

# The GPUs stand in a file beside it: `index, uuid, name, used, total`, and processes as `uuid, pid, used`;
# how busy they are as `index, uuid, percent`, and what is recorded of them as `index, name, uuid, driver`.
SCRIPT = r"""#!/bin/bash
here=$(dirname "$(readlink -f "$0")")
[[ $* != "--query-gpu=index,name,uuid,driver_version --format=csv,noheader" ]] || exec cat "$here/facts"
[[ $# == 2 && $2 == --format=csv,noheader,nounits ]] || { echo "Invalid combination of input arguments."; exit 1; }
case $1 in
    --query-gpu=index,uuid,name,memory.used,memory.total) cat "$here/gpus" ;;
    --query-gpu=index,uuid,utilization.gpu) cat "$here/use" 2>/dev/null || { echo "No devices were found"; exit 6; } ;;
    --query-compute-apps=gpu_uuid,pid,used_memory) cat "$here/apps" 2>/dev/null ;;
    --query-gpu=*) echo "Field is not a valid field to query."; exit 2 ;;
    *) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."; exit 1 ;;
esac
exit 0
"""


def gpus(count: int, name: str = "NVIDIA H100 80GB HBM3") -> str:
    return "".join(f"{index}, GPU-{index}, {name}, 1, 81559\n" for index in range(count))
