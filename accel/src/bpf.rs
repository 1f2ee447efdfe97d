//! Loads the programs and attaches them by tcx links.
//!
//! A tcx link (Linux 6.6) goes with its descriptor: nothing stays when the
//! process is killed, which a clsact filter would. libbpf-rs has no call for it
//! yet, so this module has, and it alone may be unsafe.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::ptr::NonNull;

use libbpf_rs::{
    AsRawLibbpf, ErrorKind, Link, MapCore, MapHandle, Object, ObjectBuilder, PrintLevel, Program,
};

use crate::{Error, Result};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fastpath.bpf.o"));

/// Which program, and thus which hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// At a tenant's bridge port.
    Egress,
    /// At an underlay NIC.
    Ingress,
}

/// The loaded programs.
pub(crate) struct Programs {
    object: Object,
}

fn failed(operation: &'static str, object: impl Into<String>, problem: String) -> Error {
    Error::Bpf { operation, object: object.into(), problem }
}

impl Programs {
    /// Loads them; nothing is attached yet.
    pub(crate) fn load() -> Result<Programs> {
        // libbpf would print to stderr.
        libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{text}"))));
        let object = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(|e| failed("open", "BPF object", e.to_string()))?;
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
        };
        let found = self.object.progs().find(|program| program.name() == OsStr::new(name));
        found.ok_or_else(|| failed("find", format!("program {name}"), "none".into()))
    }

    /// Attaches a program to the tcx ingress of a device of the calling thread's
    /// namespace, behind those that are there.
    pub(crate) fn attach(&self, role: Role, ifindex: u32, name: &str) -> Result<Link> {
        let program = self.program(role)?;
        let options = libbpf_sys::bpf_tcx_opts {
            sz: size_of::<libbpf_sys::bpf_tcx_opts>() as _,
            ..Default::default()
        };
        // SAFETY: the program is loaded and lives as long as self.object, and
        // libbpf reads no more of the options than their size says.
        let link = unsafe {
            libbpf_sys::bpf_program__attach_tcx(
                program.as_libbpf_object().as_ptr(),
                ifindex.cast_signed(),
                &raw const options,
            )
        };
        let Some(link) = NonNull::new(link) else {
            let error = std::io::Error::last_os_error();
            return Err(failed("attach to", format!("tcx ingress of {name}"), error.to_string()));
        };
        // SAFETY: libbpf made the link just now and gave it to nobody else.
        Ok(unsafe { Link::from_ptr(link) })
    }
}

/// How many programs are at the tcx ingress of a device of the calling thread's
/// namespace. The device may be gone: none then.
pub(crate) fn attached(ifindex: u32) -> u32 {
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options have no pointers to fill, so that the kernel writes the
    // count and the revision only, both inside of them.
    let answer = unsafe {
        libbpf_sys::bpf_prog_query_opts(
            ifindex.cast_signed(),
            libbpf_sys::BPF_TCX_INGRESS,
            &raw mut options,
        )
    };
    if answer != 0 {
        return 0;
    }
    // SAFETY: both fields of the union are the same u32.
    unsafe { options.__bindgen_anon_1.count }
}
