/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Pointers to the kernel's structs that programs only read. */
#ifndef OVERLANE_UNTRUSTED_H
#define OVERLANE_UNTRUSTED_H

/* Since Linux 6.2. */
extern void *bpf_rdonly_cast(const void *object, unsigned int type)
	__attribute__((section(".ksyms"), weak));

/*
 * Makes a pointer to a kernel struct an untrusted one. If a pointer field is read through a trusted
 * pointer, the verifier looks up four names among all types of the kernel, one type after the other,
 * each time it meets the instruction (kernel/bpf/btf.c, btf_nested_type_is_trusted). Kernels
 * without the function do not do that.
 */
#define untrusted(type, pointer)                                                               \
	({                                                                                     \
		type *__pointer = (type *)(pointer);                                           \
		/* bpf_core_type_id_kernel(). */                                               \
		if (bpf_rdonly_cast)                                                           \
			__pointer = bpf_rdonly_cast(__pointer,                                 \
						    __builtin_btf_type_id(*(type *)0, 1));     \
		__pointer;                                                                     \
	})

#endif
