# Runs as PID 1 until it becomes systemd.
# Docker gives cgroups and /sys read-only; systemd and udev need both writable. /proc/sys stays as
# it is: most of it belongs to the outer machine.
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -o remount,rw /sys
# A boot of its own, so that "since this boot" means this host's boot and not the outer machine's.
cat /proc/sys/kernel/random/uuid > /run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
exec /lib/systemd/systemd
