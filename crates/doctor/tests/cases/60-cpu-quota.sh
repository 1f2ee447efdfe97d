#!/bin/sh
# 60: a CPU quota stops the receiver.
# Source: https://github.com/kubernetes/kubernetes/issues/67577 (same kind: #51135)
# Cause: the container's limit is 5% of a CPU: the kernel stops it for most of each period, and packets wait.
# Expected: "stopped by a CPU quota for … of … ms".
# NIKA: receiver_resource_contention
# Check: OV085
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
group=; for root in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
  [ -z "$group" ] && [ -e "$root/cgroup.procs" ] && mkdir "$root/$P-quota" 2>/dev/null && group=$root/$P-quota
done
echo "$group" >"$RUN/group"
if [ "$DO" != healthy ]; then
  if [ -e "$group/cpu.cfs_quota_us" ]; then echo 5000 >"$group/cpu.cfs_quota_us"; else echo '5000 100000' >"$group/cpu.max"; fi
fi
bg sink ip netns exec "$P-pod-b" python3 -c '
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("10.244.2.2",9000))
while True:
    s.recv(2000)
    end=time.process_time()+0.002
    while time.process_time()<end: pass
'
# Programs of `ip netns exec` see a /sys of their own.
tail -n 1 "$RUN/pids" >"$group/cgroup.procs"
bg send ip netns exec "$P-pod-a" python3 -c 'import socket,time;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
while True: s.sendto(bytes(64),("10.244.2.2",9000)); time.sleep(0.02)'
echo "$0: $DO is there"
