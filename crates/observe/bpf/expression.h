/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An expression in pcap-filter syntax. Before libbpf gets the object, `src/expression.rs`
 * writes the expression's instructions over those here, and their number into the function's
 * symbol. So the kernel gets no more instructions than the expression has.
 */
#ifndef OVERLANE_OBSERVE_EXPRESSION_H
#define OVERLANE_OBSERVE_EXPRESSION_H

#include "event.h"

/* Maximum number of instructions; the same as ROOM in `src/expression.rs`. */
#define EXPRESSION_ROOM 4096
#define EXPRESSION_TEXT_OF(value) #value
#define EXPRESSION_TEXT(value) EXPRESSION_TEXT_OF(value)

/*
 * Whether the frame at `begin` of a snapshot's bytes, which end at `end`, matches; the packet
 * has `length` bytes. It is hidden and not static, so that the compiler neither assumes a
 * result nor removes an argument.
 */
__attribute__((noinline, visibility("hidden"))) int expression(const u8 *bytes, u32 begin, u32 end,
							       u32 length)
{
	int answer;

	asm volatile(".rept " EXPRESSION_TEXT(EXPRESSION_ROOM) ";"
		     "exit;"
		     ".endr"
		     : "=r"(answer)
		     : "r"(bytes), "r"(begin), "r"(end), "r"(length)
		     : "memory");
	return answer;
}

#endif
