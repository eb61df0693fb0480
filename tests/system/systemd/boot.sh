#!/bin/bash
# Prepares a root and becomes systemd in it. box.py starts it as the first process of new namespaces.
#   boot.sh HOME BINDS CGROUP...    HOME is a working folder; BINDS has lines NAME=FOLDER, mounted read-only below
#                                   /srv/edged-test; CGROUP names the machine's version 1 hierarchies
# The root is an overlay of this machine's; changes stay in memory. The machine's own services do not start.
set -eu
home=$1 binds=$2
shift 2
mkdir -p "$home/memory"
mount -t tmpfs -o size=3g tmpfs "$home/memory"
mkdir "$home"/memory/{upper,work,root}
root=$home/memory/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$home/memory/upper,workdir=$home/memory/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"

# As on hybrid machines: the version 1 hierarchies limit memory and devices, if the kernel has them there.
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
if [ $# = 0 ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
    mkdir "$root"/sys/fs/cgroup/{unified,systemd}
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    for kind in "$@"; do
        mkdir "$root/sys/fs/cgroup/$kind"
        mount -t cgroup -o "$kind" cgroup "$root/sys/fs/cgroup/$kind"
    done
fi

mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root"/dev/{pts,shm}
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"

while IFS='=' read -r name folder; do
    mkdir -p "$root/srv/edged-test/$name"
    mount --bind "$folder" "$root/srv/edged-test/$name"
    mount -o remount,bind,ro "$root/srv/edged-test/$name"
done <<<"$binds"
rm -rf "$root/var/log/journal" "$root/etc/edged" "$root/opt/edged" "$root/var/lib/edged" "$root/var/cache/edged"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
# Only the journal is wanted: this target replaces the machine's default target.
printf '[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\nWants=systemd-journald.service\nAllowIsolate=yes\n' \
    >"$root/etc/systemd/system/edged-test.target"
for unit in systemd-{udevd,timesyncd,networkd,resolved,logind,remount-fs,sysctl,modules-load} getty@tty1 console-getty; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
hostname edged-test
cd "$root"
mkdir -p .before
pivot_root . .before
umount -l /.before
exec env -i container=edged PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    /lib/systemd/systemd --system --unit=edged-test.target --show-status=0 --log-target=journal
