/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An expression in pcap-filter syntax: `src/expression.rs` writes its instructions over those
 * here, and their number into the function's symbol, before libbpf gets the object. So the
 * kernel gets no more instructions than the expression has.
 */
#ifndef OVERLANE_OBSERVE_EXPRESSION_H
#define OVERLANE_OBSERVE_EXPRESSION_H

#include "event.h"

/* Instructions; as ROOM of `src/expression.rs`. */
#define EXPRESSION_ROOM 4096
#define EXPRESSION_TEXT_OF(value) #value
#define EXPRESSION_TEXT(value) EXPRESSION_TEXT_OF(value)

/* Whether it wants the frame that begins at `begin` of a snapshot's bytes, which end at `end`;
 * the packet has `length` bytes. Hidden, not static: the compiler must neither know what it
 * answers nor leave out an argument.
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
