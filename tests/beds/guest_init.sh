#!/bin/sh
# First program of a guest kernel. Its root is the root of the machine that runs the tests, read-only, through hostfs:
# the checkout and the virtual environment are there under the same paths. $GUEST is the guest's folder of the bed,
# where `settings` says the rest. Everything written here goes to a tmpfs, except the lock and client records of the
# guest's NFS daemons: they must outlive the guest, as they do on a disk.
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. "$GUEST/settings"

mount -t proc proc /proc
mount -t sysfs sysfs /sys
# What udev would add to the kernel's own /dev; bash needs it.
ln -s /proc/self/fd /dev/fd
hostname "$NAME"
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/rpcbind /run/sendsigs.omit.d /run/kernel/lib
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts

# The guest kernel's modules are not where modprobe looks, and /lib is read-only: give it, and the kernel, the place.
ln -s "$(dirname "$(readlink -f "/usr/lib/uml/modules/$(uname -r)")")" /run/kernel/lib/modules
printf '#!/bin/sh\nexec modprobe -d /run/kernel "$@"\n' >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe

printf '127.0.0.1 localhost\n%s\n' "$KNOWN_HOSTS" >/run/hosts
mount --bind /run/hosts /etc/hosts
mount -t hostfs none /var/lib/nfs -o "$GUEST/nfs"
/run/modprobe sunrpc
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs

ip link set lo up
ip address add "$ADDRESS/24" dev vec0
ip link set vec0 up
ip address add "$CONTROL_ADDRESS/24" dev vec1
ip link set vec1 up

# What the tests need from below /tmp and /mnt (a checkout may well lie there) is laid over the tmpfs again.
mount -t tmpfs tmpfs /mnt
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp /dev/shm
mkdir -p /tmp/home
for kept in "$KEEP_1" "$KEEP_2" "$KEEP_3"; do
    case $kept in
    /tmp/* | /mnt/*)
        mkdir -p "$kept"
        mount -t hostfs none "$kept" -o "ro,$kept"
        ;;
    esac
done

rpcbind
if [ "$ROLE" = server ]; then
    mkdir /mnt/export
    mount -t ext4 -o noinit_itable /dev/ubda /mnt/export
    chmod 1777 /mnt/export
    echo "/mnt/export $CLIENTS(rw,sync,no_root_squash,no_subtree_check,fsid=0,insecure)" >/run/exports
    mount --bind /run/exports /etc/exports
    /run/modprobe nfsd
    mount -t nfsd nfsd /proc/fs/nfsd
    # The grace period is as long as the lease, for both lock protocols: recovery is then as quick as it can be.
    echo "$LEASE_S" >/proc/fs/nfsd/nfsv4leasetime
    echo "$LEASE_S" >/proc/fs/nfsd/nfsv4gracetime
    echo "$LEASE_S" >/proc/sys/fs/nfs/nlm_grace_period
    exportfs -ra
    rpc.statd --no-notify
    rpc.mountd
    rpc.nfsd 8
else
    /run/modprobe nfs
    rpc.statd --no-notify
fi
# Tells the other hosts that this one has restarted, so that they claim or drop NFSv3 locks. It stays in the background.
sm-notify
echo "ready after $(cut -d' ' -f1 /proc/uptime) s"
cd /tmp
exec env -i PATH="$PATH" HOME=/tmp/home LANG=C.UTF-8 "$PYTHON" -B "$AGENT" "$CONTROL_ADDRESS" "$AGENT_PORT" /tmp
