/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reads where netfilter's hooks have their functions, for src/programs/object.rs. */
#ifndef OVERLANE_ACCEL_HOOKS_H
#define OVERLANE_ACCEL_HOOKS_H

#include "abi.h"
#include "kernel.h"

static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;

/* Run by bpf(2), in the namespace of the calling thread. */
SEC("syscall")
int hook_lists(struct hook_lists *out)
{
	const struct net *net = bpf_get_current_task_btf()->nsproxy->net_ns;

	/* bpf_core_field_exists(): the kernel has no netfilter. */
	if (!__builtin_preserve_field_info(((struct net *)0)->nf.hooks_ipv4, 2))
		return 0;
#define LIST(family, hook, at) out->lists[at + hook] = (u64)net->nf.hooks_##family[hook];
#define LISTS(family, at)                                                                         \
	LIST(family, 0, at)                                                                       \
	LIST(family, 1, at)                                                                       \
	LIST(family, 2, at)                                                                       \
	LIST(family, 3, at)                                                                       \
	LIST(family, 4, at)
	LISTS(ipv4, 0)
	LISTS(ipv6, NF_HOOKS)
	if (__builtin_preserve_field_info(((struct net *)0)->nf.hooks_bridge, 2)) {
		LISTS(bridge, 2 * NF_HOOKS)
	}
#undef LISTS
#undef LIST
	return 0;
}

#endif
