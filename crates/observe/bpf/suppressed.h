/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Drops that are counted but not reported one by one. With `--drops-only`, user space limits
 * the number of reported drops to the room in the ring, so that no event is lost there.
 * All further drops are counted by the kernel's reason and location.
 */
#ifndef OVERLANE_OBSERVE_NOT_TOLD_H
#define OVERLANE_OBSERVE_NOT_TOLD_H

#include "kernel.h"

/*
 * Drops that may be reported, counted since the start. User space writes it, because it knows
 * how many events it has read.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} allowed SEC(".maps");

/* ABI: `Key` in src/suppressed.rs. */
struct place_of_drop {
	u64 location;
	u32 reason;
	u32 unused;
};
_Static_assert(sizeof(struct place_of_drop) == 16, "ABI of place_of_drop");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct place_of_drop);
	__type(value, u64);
} suppressed SEC(".maps");

/* Drops reported so far. */
static volatile u64 reported;

static __always_inline int may_report(void)
{
	u32 zero = 0;
	u64 *most = bpf_map_lookup_elem(&allowed, &zero);

	return most && reported < *(volatile u64 *)most;
}

/* Counts a drop that is not reported; returns whether there was room to count it. */
static __always_inline int is_counted(u64 location, u32 reason)
{
	struct place_of_drop place = { .location = location, .reason = reason };
	u64 *count = bpf_map_lookup_elem(&suppressed, &place), none = 0;

	if (!count) {
		/* If another CPU was first, its entry stays. */
		bpf_map_update_elem(&suppressed, &place, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&suppressed, &place);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
	return count != 0;
}

#endif
