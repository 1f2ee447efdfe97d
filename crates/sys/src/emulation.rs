//! Whether the CPUs are a program: QEMU's software emulation (TCG).
//!
//! Source: QEMU's `target/i386/cpu.c` (leaf 0x40000000); Intel's manual, volume 2, CPUID.

use std::sync::LazyLock;

/// Whether this machine's CPUs are QEMU's software emulation, as they say by CPUID. Always false
/// on other architectures than `x86_64`.
pub fn is_tcg() -> bool {
    // A hypervisor answers the instruction, which takes its time.
    static IS_TCG: LazyLock<bool> =
        LazyLock::new(|| hypervisor().is_some_and(|name| name == *b"TCGTCGTCGTCG"));
    *IS_TCG
}

/// What a hypervisor calls itself; `None`: there is none, or it does not say.
#[cfg(target_arch = "x86_64")]
// The intrinsic is `unsafe` in the oldest Rust that builds this, and safe in newer ones.
#[allow(unused_unsafe)]
fn hypervisor() -> Option<[u8; 12]> {
    use std::arch::x86_64::__cpuid;

    const FEATURES: u32 = 1;
    /// Of register ECX: the CPU is a hypervisor's, and the leaf below is there.
    const IS_GUEST: u32 = 1 << 31;
    const NAME: u32 = 0x4000_0000;
    // SAFETY: every CPU of x86_64 has the instruction, and it changes no memory.
    let (features, name) = unsafe { (__cpuid(FEATURES), __cpuid(NAME)) };
    let words = [name.ebx, name.ecx, name.edx];
    let mut bytes = [0; 12];
    for (part, word) in bytes.chunks_exact_mut(4).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    (features.ecx & IS_GUEST != 0).then_some(bytes)
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Option<[u8; 12]> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own word for it is the model's name.
    #[test]
    fn is_what_the_kernel_says() {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let guest =
            cpus.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
        assert_eq!(hypervisor().is_some(), guest);
        // Of QEMU's other models the name does not say whether they are emulated.
        assert!(is_tcg() || !cpus.contains("QEMU TCG CPU"));
        assert!(guest || !is_tcg());
    }
}
