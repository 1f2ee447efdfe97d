//! Loading BPF objects for programs that look on; what is wrong, in words.
//!
//! [`drop_reasons`] and [`functions`] are the running kernel's own names.

#![forbid(unsafe_code)]

mod names;

use std::ffi::OsStr;

use libbpf_rs::btf::Btf;
use libbpf_rs::{
    ErrorKind, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print,
};

pub use names::{DropReasons, NOT_TOLD, drop_reasons, functions, know_functions};

/// Opens an object, and the kernel's types beside it.
///
/// # Errors
/// A kernel without BTF, and an object that is none.
pub fn open(object: &[u8]) -> Result<(OpenObject, Btf<'static>), String> {
    // libbpf would print to stderr.
    set_print(Some((PrintLevel::Debug, |level, message| {
        tracing::debug!(?level, "libbpf: {}", message.trim_end());
    })));
    let btf = Btf::from_vmlinux()
        .map_err(|e| format!("the kernel has no BTF (/sys/kernel/btf/vmlinux): {e}"))?;
    let object = ObjectBuilder::default()
        .open_memory(object)
        .map_err(|e| format!("opening the BPF object: {e}"))?;
    Ok((object, btf))
}

/// Loads the object's programs and maps.
///
/// # Errors
/// The error says which rights it takes.
pub fn load(object: OpenObject) -> Result<Object, String> {
    object.load().map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied => format!(
            "loading BPF programs needs CAP_BPF and CAP_PERFMON in the initial user \
             namespace (root): {e}"
        ),
        _ => format!("loading the BPF programs: {e}"),
    })
}

/// A map, whose keys and values have so many bytes.
///
/// # Errors
/// Where there is none of this name, or of other sizes.
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
