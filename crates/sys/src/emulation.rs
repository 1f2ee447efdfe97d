//! Detects whether the CPUs are emulated in software by QEMU (TCG).
//!
//! Source: QEMU's `target/i386/cpu.c` (leaf 0x40000000); Intel's manual, volume 2, CPUID.

use std::sync::LazyLock;

/// Returns whether the CPUs of this machine are emulated in software by QEMU, according to CPUID.
/// Always false on architectures other than `x86_64`.
pub fn is_tcg() -> bool {
    // The hypervisor emulates this instruction, which is slow.
    static IS_TCG: LazyLock<bool> =
        LazyLock::new(|| hypervisor().is_some_and(|name| name == *b"TCGTCGTCGTCG"));
    *IS_TCG
}

/// Returns the name that the hypervisor reports; `None` if there is no hypervisor or it reports no
/// name.
#[cfg(target_arch = "x86_64")]
// The intrinsic is `unsafe` in the oldest supported Rust version and safe in newer ones.
#[allow(unused_unsafe)]
fn hypervisor() -> Option<[u8; 12]> {
    use std::arch::x86_64::__cpuid;

    const FEATURES: u32 = 1;
    /// Bit of register ECX: the CPU belongs to a hypervisor, and the leaf below exists.
    const IS_GUEST: u32 = 1 << 31;
    const NAME: u32 = 0x4000_0000;
    // SAFETY: every x86_64 CPU has the instruction, and it changes no memory.
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

    /// The kernel reports it only by the model name.
    #[test]
    fn is_what_the_kernel_says() {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let guest =
            cpus.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
        assert_eq!(hypervisor().is_some(), guest);
        // For other models of QEMU the name does not show whether they are emulated.
        assert!(is_tcg() || !cpus.contains("QEMU TCG CPU"));
        assert!(guest || !is_tcg());
    }
}
