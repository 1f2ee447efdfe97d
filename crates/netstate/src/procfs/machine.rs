//! Facts about the machine that produced a result.

use crate::cpu::{CpuStat, PROC_STAT};
use crate::proc::{ParseError, ProcError, ProcFile, Result, decimal, read_value};

/// Properties of the machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MachineFacts {
    /// `model name` of `/proc/cpuinfo`, or the equivalent of its architecture.
    pub cpu_model: String,
    /// CPUs that the kernel may schedule on.
    pub online_cpus: usize,
    /// `MemTotal`, bytes: memory available to the kernel, less than the installed memory.
    pub memory_bytes: u64,
    /// `uname -r`.
    pub kernel_release: String,
    /// `PRETTY_NAME` of `os-release(5)`, or `Linux` if there is no such file.
    pub os: String,
    /// Hypervisor, if the CPU reports one; `unknown` if its name cannot be determined.
    pub hypervisor: Option<String>,
}

impl MachineFacts {
    /// Reads the facts.
    ///
    /// # Errors
    /// If `/proc` is not mounted or a file has another format.
    pub fn read() -> Result<MachineFacts> {
        let cpuinfo = read_value("/proc/cpuinfo")?;
        let stat = CpuStat::read(&ProcFile::open(PROC_STAT)?)?;
        Ok(MachineFacts {
            cpu_model: cpu_model(&cpuinfo),
            online_cpus: stat.cpus.len(),
            memory_bytes: mem_total(&read_value("/proc/meminfo")?)?,
            kernel_release: read_value("/proc/sys/kernel/osrelease")?,
            os: read_os()?,
            hypervisor: is_guest(&cpuinfo).then(hypervisor_name),
        })
    }
}

/// Returns the value of a `key : value` line of `/proc/cpuinfo`.
fn cpuinfo_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim()).filter(|value| !value.is_empty())
    })
}

fn cpu_model(cpuinfo: &str) -> String {
    // x86 and LoongArch, arm (32 bits), POWER, RISC-V. arm64 prints only numbers.
    for key in ["model name", "Model Name", "Model", "cpu", "uarch"] {
        if let Some(model) = cpuinfo_value(cpuinfo, key) {
            return model.to_owned();
        }
    }
    match (cpuinfo_value(cpuinfo, "CPU implementer"), cpuinfo_value(cpuinfo, "CPU part")) {
        (Some(implementer), Some(part)) => format!("Arm implementer {implementer} part {part}"),
        // Some architectures print no model at all.
        _ => format!("{} (no model name in /proc/cpuinfo)", std::env::consts::ARCH),
    }
}

/// Whether the `hypervisor` flag is set: CPUID leaf 1, ECX bit 31, which is clear on hardware.
fn is_guest(cpuinfo: &str) -> bool {
    cpuinfo_value(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// Determines the hypervisor from its clock source, Xen's file, or the firmware's system vendor.
fn hypervisor_name() -> String {
    let clocks = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    let clocks = read_value(clocks).unwrap_or_default();
    for (clock, name) in [("kvm-clock", "KVM"), ("hyperv_", "Microsoft Hyper-V"), ("xen", "Xen")] {
        if clocks.split_ascii_whitespace().any(|c| c.starts_with(clock)) {
            return name.to_owned();
        }
    }
    for path in ["/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor"] {
        if let Some(name) = read_value(path).ok().filter(|name| !name.is_empty()) {
            return name;
        }
    }
    "unknown".to_owned()
}

fn mem_total(meminfo: &str) -> std::result::Result<u64, ParseError> {
    const FILE: &str = "/proc/meminfo";
    for (index, line) in meminfo.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("MemTotal:") {
            continue;
        }
        let kib = decimal(FILE, index + 1, "MemTotal", words.next())?;
        // The kernel prints no other unit.
        if words.next() != Some("kB") {
            return Err(ParseError::new(FILE, index + 1, "MemTotal", "a number of kB", line));
        }
        return kib
            .checked_mul(1024)
            .ok_or_else(|| ParseError::new(FILE, index + 1, "MemTotal", "64 bits", line));
    }
    Err(ParseError::new(FILE, 0, "MemTotal", "a line that starts with MemTotal:", "none"))
}

fn read_os() -> Result<String> {
    for path in ["/etc/os-release", "/usr/lib/os-release"] {
        match read_value(path) {
            Ok(text) => return Ok(pretty_name(&text).unwrap_or_else(|| "Linux".to_owned())),
            // Try the next path.
            Err(ProcError::Read(e)) if e.errno == nix::errno::Errno::ENOENT => {}
            Err(e) => return Err(e),
        }
    }
    Ok("Linux".to_owned())
}

/// Returns `PRETTY_NAME` without shell quotes and escapes (os-release(5)).
fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?;
    let single = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\''));
    // Single quotes: no escapes.
    if let Some(literal) = single {
        return Some(literal.to_owned()).filter(|name| !name.is_empty());
    }
    let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
    let mut name = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        name.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CPUINFO: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\n\
        model name\t: Intel(R) Xeon(R) Platinum 8481C\nflags\t\t: fpu vme hypervisor lm\n\n";

    #[test]
    fn the_model_and_the_hypervisor_flag_are_found() {
        assert_eq!(cpu_model(CPUINFO), "Intel(R) Xeon(R) Platinum 8481C");
        assert!(is_guest(CPUINFO));
        assert!(!is_guest(&CPUINFO.replace("hypervisor", "hypervisor_x")));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(cpu_model(arm), "Arm implementer 0x41 part 0xd0c");
        assert!(cpu_model("").contains("no model name"));
    }

    #[test]
    fn memory_is_in_bytes_and_strict() {
        assert_eq!(
            mem_total("MemTotal:       24572840 kB\nMemFree: 1 kB\n"),
            Ok(24_572_840 * 1024)
        );
        assert_eq!(mem_total("MemFree: 1 kB\n").unwrap_err().line, 0);
        assert_eq!(mem_total("A: 1 kB\nMemTotal: x kB\n").unwrap_err().line, 2);
        assert_eq!(mem_total("MemTotal: 1 MB\n").unwrap_err().expected, "a number of kB");
        assert_eq!(
            mem_total(&format!("MemTotal: {} kB\n", u64::MAX)).unwrap_err().expected,
            "64 bits"
        );
    }

    #[test]
    fn os_release_is_unquoted() {
        let debian = "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(pretty_name(debian).unwrap(), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(pretty_name("PRETTY_NAME='A \\ B'").unwrap(), "A \\ B");
        assert_eq!(pretty_name("PRETTY_NAME=\"\\\"A\\\" \\$1\"").unwrap(), "\"A\" $1");
        assert_eq!(pretty_name("PRETTY_NAME=Alpine").unwrap(), "Alpine");
        assert_eq!(pretty_name("PRETTY_NAME=\"\""), None);
        assert_eq!(pretty_name("NAME=x"), None);
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = MachineFacts::read().unwrap();
        assert!(facts.online_cpus >= 1 && facts.memory_bytes > 1 << 20, "{facts:?}");
        assert_eq!(
            facts.kernel_release,
            nix::sys::utsname::uname().unwrap().release().to_str().unwrap()
        );
        assert!(!facts.cpu_model.is_empty() && !facts.os.is_empty(), "{facts:?}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "((MemTotal:|PRETTY_NAME=|flags\t:|model name:)[ \"'\\\\a-z0-9]{0,24}\n?){0,4}") {
            let _ = (mem_total(&text), pretty_name(&text), cpu_model(&text), is_guest(&text));
        }
    }
}
