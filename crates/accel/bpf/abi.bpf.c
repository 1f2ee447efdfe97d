// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Never loaded. Makes clang describe each struct and enum of abi.h in this object's BTF, from which
 * build.rs generates assertions for the Rust side.
 */
#include "abi.h"

#define DESCRIBE(kind, name) kind name abi_##name

DESCRIBE(enum, limit);
DESCRIBE(struct, state);
DESCRIBE(struct, hook_lists);
DESCRIBE(struct, constants);
DESCRIBE(struct, entrance);
DESCRIBE(enum, decap_choice);
DESCRIBE(struct, symbols);
DESCRIBE(enum, labelling_flag);
DESCRIBE(struct, labelling);
DESCRIBE(struct, device);
DESCRIBE(struct, port);
DESCRIBE(enum, domain_flag);
DESCRIBE(struct, vtep_key);
DESCRIBE(struct, vtep);
DESCRIBE(struct, mac_key);
DESCRIBE(struct, source);
DESCRIBE(enum, fdb_flag);
DESCRIBE(struct, fdb);
DESCRIBE(enum, flow_place);
DESCRIBE(enum, flow_limit);
DESCRIBE(struct, flow_key);
DESCRIBE(enum, flow_flag);
DESCRIBE(struct, flow);
DESCRIBE(enum, connection_state);
DESCRIBE(enum, connection_flag);
DESCRIBE(enum, connection_last);
DESCRIBE(struct, window);
DESCRIBE(struct, connection);
DESCRIBE(struct, tracked);
DESCRIBE(struct, seen);
DESCRIBE(struct, count);
DESCRIBE(enum, reason);
