//! Counters and facts in files of `/proc` and `/sys`.

pub mod cgroup;
pub mod container;
pub mod cpu;
pub mod interrupts;
pub mod kernel_symbols;
pub mod machine;
pub mod memory_limit;
pub mod namespace;
pub mod neighbour_table;
pub mod netns_holder;
pub mod proc;
pub mod process;
pub mod reassembly;
pub mod snmp;
pub mod softnet;
pub mod tcp_listener;
pub mod udp_socket;
