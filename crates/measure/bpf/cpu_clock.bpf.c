// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Exact CPU time by kind. At every scheduler switch, softirq and interrupt the
 * time since the CPU's last event is charged to the context that ran in between,
 * so that a CPU's times always add up to `last - start`. The reader relies on that
 * sum to detect a half-written value.
 *
 * The time is split by its cause, to separate the load of a measurement from other
 * programs: tasks by their ancestors, network softirqs by the context that raised
 * them.
 *
 * Not for PREEMPT_RT, where softirqs are preempted and interrupts are threads.
 */
#include "bpf.h"
#include "untrusted.h"

/* Fields of the kernel's struct that are read here, relocated by CO-RE. */
struct task_struct {
	int pid;
	int tgid;
	unsigned int flags;
	struct task_struct *real_parent;
	char comm[16];
} __attribute__((preserve_access_index));

static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;

static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;

#define PF_KTHREAD 0x00200000

/* include/linux/interrupt.h: softirqs that process packets. TSQ of TCP is a
 * tasklet, and the pacing of TCP is an hrtimer.
 */
#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3
#define TASKLET_SOFTIRQ 6
#define HRTIMER_SOFTIRQ 8

/* Kinds of time; `Kind` in src/sampler/exact.rs has the same order. */
enum kind {
	IDLE,
	TASK,		/* of other programs */
	SOFTIRQ,	/* that process no packets */
	IRQ,
	OWN_TASK,	/* of the measurement's processes */
	NET_OWN,	/* network softirqs that they raised */
	NET_OTHER,	/* network softirqs that other programs raised */
	NET_OPEN,	/* network softirqs raised by interrupts: anybody's */
	IRQ_NET,	/* interrupts that raised a network softirq */
	KTHREAD,	/* kernel threads other than ksoftirqd: anybody's */
	KINDS
};

/* Levels of ancestors that are searched for a process of the measurement. */
#define MAX_ANCESTORS 16
/* ABI: `MAX_OWN` in src/sampler/exact.rs. */
#define MAX_OWN 4

/* PIDs (initial PID namespace) whose descendants belong to the measurement. */
struct own {
	u32 tgid[MAX_OWN];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct own);
} owners SEC(".maps");

/* ABI: sixteen u64, read as such by src/sampler/exact.rs. */
struct cpu_clock {
	u64 ns[KINDS];
	/* First and last event, ns of CLOCK_MONOTONIC; 0: none yet. */
	u64 start;
	u64 last;
	/* Current context. Each field is written in its own context only, so that
	 * an interrupt between a read and a write cannot undo another's write.
	 * Zero, or the kind that the time is charged to.
	 */
	u64 in_irq;
	u64 in_softirq;
	u64 task_kind;
	/* Kind of the next network softirq, by the context that raised it. */
	u64 raised;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_clock);
} clocks SEC(".maps");

static __always_inline int is_own(struct task_struct *task)
{
	u32 key = 0;
	struct own *own = bpf_map_lookup_elem(&owners, &key);

	/* For the verifier: entry 0 always exists. */
	if (!own)
		return 0;
	for (int level = 0; level < MAX_ANCESTORS; level++) {
		u32 tgid = task->tgid;

		/* init has no ancestors, and kernel threads are not started here. */
		if (tgid <= 2)
			return 0;
		if (tgid == own->tgid[0] || tgid == own->tgid[1] ||
		    tgid == own->tgid[2] || tgid == own->tgid[3])
			return 1;
		task = task->real_parent;
		if (!task)
			return 0;
	}
	return 0;
}

static __always_inline u64 kind_of(struct task_struct *task)
{
	if (task->pid == 0)
		return IDLE;
	/* ksoftirqd runs only softirqs: its overhead counts as softirq time. */
	if ((task->flags & PF_KTHREAD) && task->comm[0] == 'k' &&
	    task->comm[1] == 's' && task->comm[2] == 'o' &&
	    task->comm[3] == 'f' && task->comm[4] == 't' &&
	    task->comm[5] == 'i' && task->comm[6] == 'r' &&
	    task->comm[7] == 'q' && task->comm[8] == 'd')
		return SOFTIRQ;
	if (task->flags & PF_KTHREAD) {
		/* Threaded NAPI ("napi/eth0-8193") does a softirq's work. */
		if (task->comm[0] == 'n' && task->comm[1] == 'a' &&
		    task->comm[2] == 'p' && task->comm[3] == 'i')
			return NET_OPEN;
		return KTHREAD;
	}
	return is_own(task) ? OWN_TASK : TASK;
}

static __always_inline struct cpu_clock *charge(void)
{
	u32 key = 0;
	struct cpu_clock *clock = bpf_map_lookup_elem(&clocks, &key);
	u64 now, last, kind;

	/* For the verifier: entry 0 always exists. */
	if (!clock)
		return 0;
	now = bpf_ktime_get_ns();
	/*
	 * An interrupt may charge between these lines. The exchange and the
	 * addition are each one instruction, so no time is charged twice and
	 * the sum stays whole: if the interrupt came first, `now - last` is
	 * negative by its length and corrects what it charged.
	 */
	last = __sync_lock_test_and_set(&clock->last, now);
	if (!last) {
		clock->start = now;
		clock->task_kind = kind_of(untrusted(struct task_struct, bpf_get_current_task_btf()));
		return clock;
	}
	kind = clock->in_irq	   ? clock->in_irq :
	       clock->in_softirq ? clock->in_softirq :
				     clock->task_kind;
	/* For the verifier; no other value is ever stored. */
	if (kind < KINDS)
		__sync_fetch_and_add(&clock->ns[kind], now - last);
	return clock;
}

static __always_inline int irq(u64 entered)
{
	struct cpu_clock *clock = charge();

	if (clock)
		clock->in_irq = entered ? IRQ : 0;
	return 0;
}


/* bool preempt, struct task_struct *prev, struct task_struct *next, … */
SEC("tp_btf/sched_switch")
int sched_switch(u64 *ctx)
{
	struct task_struct *next = untrusted(struct task_struct, ctx[2]);
	struct cpu_clock *clock = charge();

	if (clock)
		clock->task_kind = kind_of(next);
	return 0;
}

/* unsigned int vec_nr */
SEC("tp_btf/softirq_entry")
int softirq_entry(u64 *ctx)
{
	struct cpu_clock *clock = charge();
	u64 vec = ctx[0];

	if (!clock)
		return 0;
	if (vec == NET_RX_SOFTIRQ || vec == NET_TX_SOFTIRQ)
		clock->in_softirq = clock->raised ? clock->raised : NET_OPEN;
	else if (vec == TASKLET_SOFTIRQ || vec == HRTIMER_SOFTIRQ)
		clock->in_softirq = NET_OPEN;
	else
		clock->in_softirq = SOFTIRQ;
	return 0;
}

SEC("tp_btf/softirq_exit")
int softirq_exit(u64 *ctx)
{
	struct cpu_clock *clock = charge();

	if (clock)
		clock->in_softirq = 0;
	return 0;
}

/* unsigned int vec_nr. Charges nothing: only the cause is recorded. */
SEC("tp_btf/softirq_raise")
int softirq_raise(u64 *ctx)
{
	struct cpu_clock *clock;
	u64 vec = ctx[0];
	u32 key = 0;

	if (vec != NET_RX_SOFTIRQ && vec != NET_TX_SOFTIRQ)
		return 0;
	clock = bpf_map_lookup_elem(&clocks, &key);
	/* For the verifier: entry 0 always exists. */
	if (!clock)
		return 0;
	if (clock->in_irq) {
		/* The packets of a device's interrupt are anybody's. */
		clock->in_irq = IRQ_NET;
		clock->raised = NET_OPEN;
	} else if (clock->in_softirq) {
		/* A packet goes on over the next device: the cause is the same. */
		clock->raised = clock->in_softirq == SOFTIRQ ? NET_OPEN : clock->in_softirq;
	} else if (clock->task_kind == OWN_TASK) {
		clock->raised = NET_OWN;
	} else if (clock->task_kind == TASK) {
		clock->raised = NET_OTHER;
	} else {
		clock->raised = NET_OPEN;
	}
	return 0;
}

/*
 * Run once by user space: adds the calling process to the measurement. Its PID
 * of the initial PID namespace is known only here.
 */
SEC("syscall")
int add_caller(void *ctx)
{
	u32 key = 0;
	struct own *own = bpf_map_lookup_elem(&owners, &key);

	if (!own)
		return 0;
	own->tgid[0] = bpf_get_current_pid_tgid() >> 32;
	return own->tgid[0];
}

SEC("tp_btf/irq_handler_entry")
int irq_handler_entry(u64 *ctx)
{
	return irq(1);
}

SEC("tp_btf/irq_handler_exit")
int irq_handler_exit(u64 *ctx)
{
	return irq(0);
}

/*
 * x86 has separate trace points for interrupts without a registered handler.
 * The reschedule interrupt is left out: its handler does nothing.
 */
SEC("tp_btf/local_timer_entry")
int local_timer_entry(u64 *ctx)
{
	return irq(1);
}

SEC("tp_btf/local_timer_exit")
int local_timer_exit(u64 *ctx)
{
	return irq(0);
}

SEC("tp_btf/call_function_entry")
int call_function_entry(u64 *ctx)
{
	return irq(1);
}

SEC("tp_btf/call_function_exit")
int call_function_exit(u64 *ctx)
{
	return irq(0);
}

SEC("tp_btf/call_function_single_entry")
int call_function_single_entry(u64 *ctx)
{
	return irq(1);
}

SEC("tp_btf/call_function_single_exit")
int call_function_single_exit(u64 *ctx)
{
	return irq(0);
}
