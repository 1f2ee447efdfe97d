//! Loads BPF objects for observing programs, with readable errors.
//!
//! [`drop_reasons`] and [`functions`] return names of the running kernel.

#![forbid(unsafe_code)]

mod names;

use std::ffi::OsStr;

use libbpf_rs::btf::Btf;
use libbpf_rs::{
    ErrorKind, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print,
};

pub use names::{DropReasons, NOT_TOLD, drop_reasons, functions, know_functions};

/// Opens a BPF object and the BTF types of the kernel.
///
/// # Errors
/// If the kernel has no BTF, or the object is invalid.
pub fn open(object: &[u8]) -> Result<(OpenObject, Btf<'static>), String> {
    // By default libbpf prints to stderr.
    set_print(Some((PrintLevel::Debug, |level, message| {
        tracing::debug!(?level, "libbpf: {}", message.trim_end());
    })));
    let btf = Btf::from_vmlinux()
        .map_err(|e| format!("the kernel has no BTF (/sys/kernel/btf/vmlinux): {e}"))?;
    let object = ObjectBuilder::default()
        .open_memory(object)
        .map_err(|e| format!("cannot open the BPF object: {e}"))?;
    Ok((object, btf))
}

/// Loads the programs and maps of the object.
///
/// # Errors
/// The error names the required capabilities.
pub fn load(object: OpenObject) -> Result<Object, String> {
    object.load().map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied => format!(
            "loading BPF programs needs CAP_BPF and CAP_PERFMON in the initial user \
             namespace (root): {e}"
        ),
        _ => format!("cannot load the BPF programs: {e}"),
    })
}

/// Returns a map whose keys and values have these sizes in bytes.
///
/// # Errors
/// If there is no map with this name, or its sizes differ.
pub fn map(object: &Object, name: &str, key: usize, value: usize) -> Result<MapHandle, String> {
    let map = object
        .maps()
        .find(|map| map.name() == OsStr::new(name))
        .ok_or_else(|| format!("the BPF object has no map {name:?}"))?;
    let got = (map.key_size() as usize, map.value_size() as usize);
    if got != (key, value) {
        return Err(format!("map {name:?}: expected {key} and {value} bytes, got {got:?}"));
    }
    MapHandle::try_from(&map).map_err(|e| format!("map {name:?}: {e}"))
}
