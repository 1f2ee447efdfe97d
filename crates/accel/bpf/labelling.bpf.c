// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Reads the variables by which SELinux's functions at netfilter's hooks tell whether to check
 * packets (security/selinux/hooks.c, selinux_secmark_enabled, selinux_peerlbl_enabled), for
 * src/programs/labelling.rs. The addresses are constants, so that who takes over the process can
 * read nothing else.
 */
#include "abi.h"

static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;

/* security/selinux/include/security.h. */
struct selinux_state {
	_Bool policycap[4];
} __attribute__((preserve_access_index));

/* security/selinux/include/policycap.h: numbers in the binary policy, so they stay. */
#define POLICYDB_CAP_NETPEER 0
#define POLICYDB_CAP_ALWAYSNETWORK 3

/* enum bpf_field_info_kind of libbpf. */
#define BYTE_OFFSET 0
#define BYTE_SIZE 1
#define EXISTS 2
#define CAPABILITY(number, what)                                                                  \
	__builtin_preserve_field_info(((struct selinux_state *)0)->policycap[number], what)

const volatile struct symbols symbols = {};

static __always_inline int has_capability(u64 offset, u32 flag, struct labelling *out)
{
	u8 is = 0;

	if (bpf_probe_read_kernel(&is, sizeof(is), (const void *)(symbols.state + offset)))
		return 0;
	if (is)
		out->flags |= flag;
	return 1;
}

static __always_inline u32 count_at(u64 address, u32 flag, struct labelling *out)
{
	u32 count = 0;

	if (!address || bpf_probe_read_kernel(&count, sizeof(count), (const void *)address))
		return 0;
	out->flags |= flag;
	return count;
}

/* Run by bpf(2). */
SEC("syscall")
int labelling(struct labelling *out)
{
	/* Another layout of the variable: leave LABELLING_POLICY out. */
	if (symbols.state && CAPABILITY(POLICYDB_CAP_ALWAYSNETWORK, EXISTS) &&
	    CAPABILITY(POLICYDB_CAP_ALWAYSNETWORK, BYTE_SIZE) == 1 &&
	    has_capability(CAPABILITY(POLICYDB_CAP_NETPEER, BYTE_OFFSET),
			   LABELLING_PEER_CONTROLS, out) &&
	    has_capability(CAPABILITY(POLICYDB_CAP_ALWAYSNETWORK, BYTE_OFFSET),
			   LABELLING_ALWAYS, out))
		out->flags |= LABELLING_POLICY;
	out->secmark = count_at(symbols.secmark, LABELLING_SECMARK, out);
	out->netlabel = count_at(symbols.netlabel, LABELLING_NETLABEL, out);
	out->ipsec = count_at(symbols.ipsec, LABELLING_IPSEC, out);
	return 0;
}
