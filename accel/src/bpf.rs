//! Loads the programs and attaches them by tcx links.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{
    ErrorKind, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, Program,
};
use sys::tcx::{self, Hook};

use crate::{Error, Result};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fastpath.bpf.o"));

/// Which program, and thus which hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// At a tenant's bridge port.
    Egress,
    /// At an underlay NIC.
    Ingress,
    /// At the NICs' end of the veth pair to a sandbox.
    Outward,
    /// At the sandbox's end of it.
    Inward,
}

/// The loaded programs.
pub(crate) struct Programs {
    object: Object,
}

fn failed(operation: &'static str, object: impl Into<String>, problem: String) -> Error {
    Error::Bpf { operation, object: object.into(), problem }
}

/// Maps that the programs of all namespaces share.
const SHARED: [&str; 6] = ["state", "ports", "vteps", "fdb", "sources", "counts"];
/// Those of them with one for each forwarding entry.
const ENTRIES: [&str; 2] = ["fdb", "sources"];

fn open() -> Result<OpenObject> {
    // libbpf would print to stderr.
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{text}"))));
    ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(|e| failed("open", "BPF object", e.to_string()))
}

fn load(object: OpenObject) -> Result<Programs> {
    let object = object.load().map_err(|e| {
        failed(
            "load",
            "BPF programs",
            match e.kind() {
                ErrorKind::PermissionDenied => {
                    format!("needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (root): {e}")
                }
                _ => format!("needs Linux 6.6 with BTF: {e}"),
            },
        )
    })?;
    Ok(Programs { object })
}

fn set_up<'a>(name: &'a str) -> impl Fn(libbpf_rs::Error) -> Error + 'a {
    move |e| failed("set up", format!("map {name}"), e.to_string())
}

impl Programs {
    /// Loads them for the NICs' namespace, with room for so many forwarding entries;
    /// nothing is attached yet.
    pub(crate) fn load(room: u32) -> Result<Programs> {
        let mut object = open()?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if ENTRIES.contains(&name.as_str()) {
                map.set_max_entries(room).map_err(set_up(&name))?;
            }
        }
        load(object)
    }

    /// Loads them for another namespace, with this number and the same maps.
    pub(crate) fn load_for(&self, netns: u16) -> Result<Programs> {
        let mut object = open()?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if SHARED.contains(&name.as_str()) {
                let found = self.object.maps().find(|map| map.name() == OsStr::new(&name));
                let shared =
                    found.ok_or_else(|| failed("find", format!("map {name}"), "none".into()))?;
                map.reuse_fd(shared.as_fd()).map_err(set_up(&name))?;
            } else if name.ends_with(".rodata") {
                // Its only constant.
                map.set_initial_value(&u32::from(netns).to_ne_bytes()).map_err(set_up(&name))?;
            }
        }
        load(object)
    }

    /// A map, whose values have `size` bytes.
    pub(crate) fn map(&self, name: &str, size: usize) -> Result<MapHandle> {
        let found = self.object.maps().find(|map| map.name() == OsStr::new(name));
        let found = found.ok_or_else(|| failed("find", format!("map {name}"), "none".into()))?;
        let map = MapHandle::try_from(&found)
            .map_err(|e| failed("open", format!("map {name}"), e.to_string()))?;
        if map.value_size() as usize != size {
            let problem = format!("expected values of {size} bytes, got {}", map.value_size());
            return Err(failed("check", format!("map {name}"), problem));
        }
        Ok(map)
    }

    fn program(&self, role: Role) -> Result<Program<'_>> {
        let name = match role {
            Role::Egress => "egress",
            Role::Ingress => "ingress",
            Role::Outward => "outward",
            Role::Inward => "inward",
        };
        let found = self.object.progs().find(|program| program.name() == OsStr::new(name));
        found.ok_or_else(|| failed("find", format!("program {name}"), "none".into()))
    }

    /// Attaches a program to the tcx ingress of a device of the calling thread's
    /// namespace, behind those that are there.
    pub(crate) fn attach(&self, role: Role, ifindex: u32, name: &str) -> Result<OwnedFd> {
        tcx::attach(self.program(role)?.as_fd(), ifindex, Hook::Ingress).map_err(|error| {
            failed("attach to", format!("tcx ingress of {name}"), error.errno.to_string())
        })
    }
}
