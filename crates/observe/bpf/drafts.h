/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Events under construction. The programs that count flows only use the first one. */
#ifndef OVERLANE_OBSERVE_DRAFTS_H
#define OVERLANE_OBSERVE_DRAFTS_H

#include "kernel.h"
#include "event.h"
#include "headers.h"

/*
 * Events that are too large for the stack: those under way, and the last one reported for a
 * datagram received on this CPU. Several are under way if a program is interrupted: a process
 * reads a packet, a softirq receives another one, and a hardware interrupt frees a third.
 */
#define DRAFTS 3
#define DATAGRAM DRAFTS

struct draft {
	struct snapshot snapshot;
	struct headers headers;
	u32 users;	/* programs that use it or check whether they may */
	u32 at;		/* its index */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DRAFTS + 1);
	__type(key, u32);
	__type(value, struct draft);
} drafts SEC(".maps");

static __always_inline struct event *current_event(u32 at, struct headers **headers)
{
	struct draft *draft = bpf_map_lookup_elem(&drafts, &at);

	if (!draft)
		return 0;
	*headers = &draft->headers;
	return &draft->snapshot.event;
}

static __always_inline void release_draft(struct draft *draft)
{
	__sync_fetch_and_add(&draft->users, -1);
}

/*
 * Returns an event that no interrupted program of this CPU uses. A program that finds another
 * user releases the event again, so that no two programs use the same one, in any order. Returns
 * 0 if more programs are interrupted than expected.
 */
static __always_inline struct draft *take_draft(void)
{
	struct draft *draft;
	u32 at;

#pragma unroll
	for (at = 0; at < DRAFTS; at++) {
		u32 key = at;

		draft = bpf_map_lookup_elem(&drafts, &key);
		if (!draft)
			return 0;
		__sync_fetch_and_add(&draft->users, 1);
		if (*(volatile u32 *)&draft->users == 1) {
			draft->at = at;
			return draft;
		}
		release_draft(draft);
	}
	return 0;
}

#endif
