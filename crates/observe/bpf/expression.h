/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An expression in pcap-filter syntax: `src/expression.rs` writes its instructions over those
 * between the marks, before the kernel gets the program. What is left of the room is jumped
 * over: the verifier takes it out, in one piece.
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
__attribute__((naked, noinline, visibility("hidden"))) int expression(const u8 *bytes, u32 begin,
								      u32 end, u32 length)
{
	asm volatile("r0 = 0x6f766c31;"
		     "if r0 == 0x6f766c31 goto +" EXPRESSION_TEXT(EXPRESSION_ROOM) ";"
		     ".rept " EXPRESSION_TEXT(EXPRESSION_ROOM) ";"
		     "goto +0;"
		     ".endr;"
		     "r0 = 0x6f766c32;"
		     "exit;" ::: "memory");
}

#endif
