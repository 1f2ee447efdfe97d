//! Loads the crate's BPF programs and describes errors as text.

use libbpf_rs::{ErrorKind, Object, ObjectBuilder, PrintLevel};

pub(crate) fn load(object: &[u8], constants: &[u8]) -> Result<Object, String> {
    // Otherwise libbpf would print to stderr.
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, _| {})));
    let mut object = ObjectBuilder::default()
        .open_memory(object)
        .map_err(|e| format!("cannot open the BPF object: {e}"))?;
    object
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or("the BPF object has no constants")?
        .set_initial_value(constants)
        .map_err(|e| format!("setting the BPF object's constants: {e}"))?;
    object.load().map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied => {
            format!("loading BPF programs needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (root): {e}")
        }
        _ => format!("cannot load the BPF programs: {e}"),
    })
}
