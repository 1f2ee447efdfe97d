// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Exact CPU time by kind. At every scheduler switch, softirq and interrupt the
 * time since the CPU's last event is charged to the context that ran in between,
 * so that a CPU's times always add up to `last - start`. The reader relies on that
 * sum to detect a half-written value.
 *
 * Not for PREEMPT_RT, where softirqs are preempted and interrupts are threads.
 */
#include "bpf.h"

/* Fields of the kernel's struct that are read here, relocated by CO-RE. */
struct task_struct {
	int pid;
	unsigned int flags;
	char comm[16];
} __attribute__((preserve_access_index));

static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;

#define PF_KTHREAD 0x00200000

/* Kinds of time; CpuNs in src/sampler/exact.rs has the same order. */
enum kind { IDLE, TASK, SOFTIRQ, IRQ, KINDS };

/* ABI: nine u64, read as such by src/sampler/exact.rs. */
struct cpu_clock {
	u64 ns[KINDS];
	/* First and last event, ns of CLOCK_MONOTONIC; 0: none yet. */
	u64 start;
	u64 last;
	/* Current context. Each field is written in its own context only, so that
	 * an interrupt between a read and a write cannot undo another's write.
	 */
	u64 in_irq;
	u64 in_softirq;
	u64 task_kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_clock);
} clocks SEC(".maps");

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
	return TASK;
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
		clock->task_kind = kind_of(bpf_get_current_task_btf());
		return clock;
	}
	kind = clock->in_irq ? IRQ : clock->in_softirq ? SOFTIRQ : clock->task_kind;
	/* For the verifier; no other value is ever stored. */
	if (kind < KINDS)
		__sync_fetch_and_add(&clock->ns[kind], now - last);
	return clock;
}

static __always_inline int irq(u64 entered)
{
	struct cpu_clock *clock = charge();

	if (clock)
		clock->in_irq = entered;
	return 0;
}

static __always_inline int softirq(u64 entered)
{
	struct cpu_clock *clock = charge();

	if (clock)
		clock->in_softirq = entered;
	return 0;
}

/* bool preempt, struct task_struct *prev, struct task_struct *next, … */
SEC("tp_btf/sched_switch")
int sched_switch(u64 *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx[2];
	struct cpu_clock *clock = charge();

	if (clock)
		clock->task_kind = kind_of(next);
	return 0;
}

SEC("tp_btf/softirq_entry")
int softirq_entry(u64 *ctx)
{
	return softirq(1);
}

SEC("tp_btf/softirq_exit")
int softirq_exit(u64 *ctx)
{
	return softirq(0);
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
