#!/bin/sh
# 140: an eBPF filter that another CNI left behind drops the tunnel.
# Source: https://github.com/cilium/cilium/issues/17292
# Cause: clsact ingress of nic0 of b has a bpf filter that drops UDP 8472
# Expected: tc filter (bpf program) at ingress of nic0 of b
# Check: OV048
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
cat >"$RUN/d.c" <<'BC'
struct __sk_buff { unsigned int len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end; };
struct xdp_md { unsigned int data, data_end, data_meta, a, b; };
#define S(x) __attribute__((section(x), used))
static inline int hit(unsigned char *d, unsigned char *e) { return d + 38 <= e && d[12] == 8 && d[13] == 0 && d[23] == 17 && ((d[36] << 8 | d[37]) == 8472); }
S("tc") int drop(struct __sk_buff *s) { return hit((void *)(long)s->data, (void *)(long)s->data_end) ? 2 : 0; }
S("xdp") int xdrop(struct xdp_md *s) { return hit((void *)(long)s->data, (void *)(long)s->data_end) ? 1 : 2; }
char _l[] S("license") = "GPL";
BC
clang -O2 -g -target bpf -c "$RUN/d.c" -o "$RUN/d.o"

[ "$DO" = healthy ] || { ns b tc qdisc add dev nic0 clsact; ns b tc filter add dev nic0 ingress prio 1 bpf da obj "$RUN/d.o" sec tc; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
