//! A container image with one program that only waits. It keeps the container's namespaces
//! alive while the load runs in them.
//!
//! The program is a few machine instructions, so the lab needs neither a compiler nor a
//! registry.

use std::io;

/// The program's path in the image.
pub(super) const PROGRAM: &str = "pause";

/// Waits for signals forever (`pause(2)`).
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[
    0xb8, 0x22, 0x00, 0x00, 0x00, // mov eax, 34 (pause)
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp to the beginning
];
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;

/// Waits on no descriptors forever (`ppoll(2)`; this architecture has no pause).
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[
    0x00, 0x00, 0x80, 0xd2, // mov x0, 0
    0x01, 0x00, 0x80, 0xd2, // mov x1, 0
    0x02, 0x00, 0x80, 0xd2, // mov x2, 0
    0x03, 0x00, 0x80, 0xd2, // mov x3, 0
    0x04, 0x00, 0x80, 0xd2, // mov x4, 0
    0x28, 0x09, 0x80, 0xd2, // mov x8, 73 (ppoll)
    0x01, 0x00, 0x00, 0xd4, // svc 0
    0xf9, 0xff, 0xff, 0x17, // b to the beginning
];
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CODE: &[u8] = &[];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: u16 = 0;

/// Returns whether there is a program for this architecture.
pub(super) fn is_known() -> bool {
    !CODE.is_empty()
}

/// Returns a static executable (elf(5)): header, one loadable segment, the code.
fn executable() -> Vec<u8> {
    const HEADER: u16 = 64;
    const SEGMENT: u16 = 56;
    const BASE: u64 = 0x40_0000;
    /// The largest page size of these architectures.
    const ALIGNMENT: u64 = 0x1_0000;
    let start = u64::from(HEADER + SEGMENT);
    let length = start + CODE.len() as u64;
    let class = if cfg!(target_endian = "little") { 1 } else { 2 };
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, class, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_ne_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_ne_bytes());
    let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_ne_bytes());
    // Type (executable), machine, version, entry, offsets of segments and sections, flags, then
    // size and number of each.
    half(&mut file, 2);
    half(&mut file, MACHINE);
    word(&mut file, 1);
    long(&mut file, BASE + start);
    long(&mut file, HEADER.into());
    long(&mut file, 0);
    word(&mut file, 0);
    for value in [HEADER, SEGMENT, 1, 0, 0, 0] {
        half(&mut file, value);
    }
    // The segment: PT_LOAD (1), readable and executable (5), from the start of the file.
    word(&mut file, 1);
    word(&mut file, 5);
    for value in [0, BASE, BASE, length, length, ALIGNMENT] {
        long(&mut file, value);
    }
    file.extend(CODE);
    file
}

/// Returns the image's root file system for `docker import`.
///
/// # Errors
/// None in practice: it writes to memory.
pub(super) fn archive() -> io::Result<Vec<u8>> {
    let program = executable();
    let mut header = tar::Header::new_ustar();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, PROGRAM, program.as_slice())?;
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_runs_until_it_is_killed() {
        if !is_known() {
            test_support::skip!("there is no program for {}", std::env::consts::ARCH);
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(PROGRAM);
        test_support::install(&executable(), &path);
        let mut child = std::process::Command::new(&path).spawn().unwrap();
        // It must sleep, neither ended nor spinning.
        let stat = format!("/proc/{}/stat", child.id());
        testbed::poll("a program that waits", std::time::Duration::from_secs(10), || {
            let text = std::fs::read_to_string(&stat).unwrap_or_default();
            let sleeps = text.contains("(pause) S");
            Ok(if sleeps { Ok(()) } else { Err(text) })
        })
        .unwrap();
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
