/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A lock inside a map's value. The kernel knows it by the name of its type. */
#ifndef OVERLANE_ACCEL_LOCK_H
#define OVERLANE_ACCEL_LOCK_H

#include "bpf.h"

struct bpf_spin_lock {
	u32 val;
};

static long (*const bpf_spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*const bpf_spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;

#endif
