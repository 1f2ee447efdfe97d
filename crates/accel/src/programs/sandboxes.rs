//! Programs of sandboxes. All sandboxes share one copy of `bpf/fastpath.bpf.c`. Each has small
//! programs of its own (`bpf/enter.bpf.c`), which continue there by tail calls.
//!
//! Sandboxes cannot use the copy of the NICs' namespace: it has the number 0 compiled in, and no
//! code to read another.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, Object};

use super::abi::{self, RawEntrance};
use super::object::{self, Programs, Shared, failed, load, open, program, set_up};
use crate::Result;

const ENTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/enter.bpf.o"));

/// Maps that the programs of all namespaces share.
const MAPS: [&str; 12] = [
    "state",
    "ports",
    "vteps",
    "fdb",
    "sources",
    "counts",
    "flows",
    "judged",
    "connections",
    "tracked_flows",
    "seen_flows",
    "asked_flows",
];
/// Shared programs that need the number of a sandbox, and the arrays of their tail calls.
const BODIES: [(&str, &str); 2] = [("encap", "encap_body"), ("leave", "leave_body")];
/// A shared program that needs no number.
const INWARD: &str = "inward";

/// Programs that all sandboxes share.
pub(crate) struct SandboxPrograms {
    bodies: Object,
    /// Has the arrays of the tail calls, and no program.
    arrays: Object,
}

impl SandboxPrograms {
    /// Loads the programs, with the maps of the NICs' namespace.
    pub(crate) fn load(home: &Programs) -> Result<SandboxPrograms> {
        let mut bodies = open(object::OBJECT)?;
        for mut program in bodies.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            program.set_autoload(name == INWARD || BODIES.iter().any(|(body, _)| *body == name));
        }
        for mut map in bodies.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if MAPS.contains(&name.as_str()) {
                map.reuse_fd(object::map(&home.object, &name)?.as_fd()).map_err(set_up(&name))?;
            } else if name.ends_with(".rodata") {
                let constants = object::constants(true, home.decap);
                map.set_initial_value(&constants).map_err(set_up(&name))?;
            }
        }
        let bodies = load(bodies)?;
        let mut arrays = open(ENTER)?;
        arrays.progs_mut().for_each(|mut program| program.set_autoload(false));
        let arrays = load(arrays)?;
        for (body, array) in BODIES {
            let fd = program(&bodies, body)?.as_fd().as_raw_fd().to_ne_bytes();
            let index = 0_u32.to_ne_bytes();
            object::map(&arrays, array)?
                .update(&index, &fd, MapFlags::ANY)
                .map_err(set_up(array))?;
        }
        Ok(SandboxPrograms { bodies, arrays })
    }

    /// Loads the programs for the sandbox with this number.
    pub(crate) fn load_for(&self, netns: u16, home: &Programs) -> Result<Programs> {
        let mut object = open(ENTER)?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if BODIES.iter().any(|(_, array)| *array == name) {
                map.reuse_fd(object::map(&self.arrays, &name)?.as_fd()).map_err(set_up(&name))?;
            } else if name.ends_with(".rodata") {
                let entrance = abi::bytes(&RawEntrance { netns: netns.into() });
                map.set_initial_value(&entrance).map_err(set_up(&name))?;
            }
        }
        let inward = program(&self.bodies, INWARD)?;
        let fd = inward
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| failed("copy the descriptor of", "program inward", e.to_string()))?;
        let inward = Some(Shared { fd, id: object::id(inward.as_fd())? });
        Ok(Programs { object: load(object)?, inward, has_guard: false, decap: home.decap })
    }
}
