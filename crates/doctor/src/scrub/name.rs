//! Pseudonyms of names, and shortened texts.

use std::collections::{BTreeMap, BTreeSet};

use netstate::cpu::parse_list;

/// Programs that checks recognize. Their names identify a product, not an owner.
const PROGRAMS: [&str; 2] = ["ovs-vswitchd", "overlane"];
/// Hypervisors. A text that contains one, in any case, becomes it.
const HYPERVISORS: [&str; 8] =
    ["Amazon", "Google", "KVM", "Microsoft", "QEMU", "VMware", "VirtualBox", "Xen"];
/// Parts of an interrupt's name by which checks recognize a receive queue.
const RECEIVE: [&str; 4] = ["mlx5_comp", "input", "ntfy", "rx"];

/// Names of one kind and their pseudonyms.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: BTreeMap<String, String>,
    last: usize,
    /// Real names, which no pseudonym may be.
    real: BTreeSet<String>,
}

impl Names {
    /// Starts with the real names, which no pseudonym may equal.
    pub(super) fn of(real: impl IntoIterator<Item = String>) -> Names {
        Names { real: real.into_iter().collect(), ..Names::default() }
    }

    /// Returns the pseudonym of a name, `stem` and a number, or the name itself if it stays.
    pub(super) fn get(&mut self, name: &str, stem: &str, stays: bool) -> String {
        if stays || name.is_empty() {
            return name.to_owned();
        }
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let other = loop {
            self.last += 1;
            let other = format!("{stem}{}", self.last);
            if !self.real.contains(&other) {
                break other;
            }
        };
        self.known.insert(name.to_owned(), other.clone());
        other
    }

    /// Returns the pseudonym of a name, if it has one.
    pub(super) fn known(&self, name: &str) -> Option<&str> {
        self.known.get(name).map(String::as_str)
    }

    /// Returns the longest replaced name that `text` begins with.
    pub(super) fn beginning_of(&self, text: &str) -> Option<&str> {
        let begins = |name: &&String| {
            let rest = text.strip_prefix(name.as_str());
            // `eth1` does not match `eth10`.
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        };
        let names = self.known.keys().filter(begins);
        names.max_by_key(|name| name.len()).map(String::as_str)
    }
}

/// Returns an identifier of the kernel (a driver, a kind, a queueing discipline), else `other`.
pub(super) fn identifier(text: &str) -> String {
    (if is_identifier(text) { text } else { "other" }).to_owned()
}

/// Whether a text has the form of an identifier of the kernel: letters, digits, `-` and `_`. The
/// numbers and hexadecimal digits in it are too few for an address.
pub(super) fn is_identifier(text: &str) -> bool {
    let runs = |is: fn(char) -> bool| -> Vec<usize> {
        text.split(|c: char| !is(c)).map(str::len).filter(|length| *length > 0).collect()
    };
    let digits = runs(|c| c.is_ascii_digit());
    let hexadecimal = runs(|c| c.is_ascii_hexdigit());
    let parts = || text.split(['-', '_']);
    let like_numbers =
        parts().filter(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit())).count();
    text.len() <= 40
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        && parts().all(|part| !part.is_empty())
        && digits.len() <= 2
        && digits.iter().all(|length| *length <= 4)
        && hexadecimal.iter().all(|length| *length < 7)
        && like_numbers < 3
}

/// Returns the stem of a program's pseudonym, and whether the name stays.
pub(super) fn program(command: &str) -> (&'static str, bool) {
    let virtual_machine = command.starts_with("qemu") || command == "kvm";
    (if virtual_machine { "qemu" } else { "program" }, PROGRAMS.contains(&command))
}

/// Returns the stem of a device's pseudonym.
pub(super) fn stem(kind: Option<&str>) -> &'static str {
    match kind {
        Some("veth") => "veth",
        Some("bridge") => "br",
        Some("vxlan") => "vxlan",
        Some("tun") => "tap",
        Some("bond") => "bond",
        _ => "dev",
    }
}

/// Returns the listed hypervisor that a text names.
pub(super) fn hypervisor(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let mut known = HYPERVISORS.iter();
    known.find(|name| text.contains(&name.to_ascii_lowercase())).unwrap_or(&"unknown").to_string()
}

/// Returns the numbers at the start of a kernel release: `6.18.44`.
pub(super) fn release(text: &str) -> String {
    let mut parts = text.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        (&part[..end], end == part.len())
    });
    let mut kept: Vec<&str> = Vec::new();
    for (number, whole) in parts.by_ref().take(3) {
        if !(1..=3).contains(&number.len()) {
            break;
        }
        kept.push(number);
        if !whole {
            break;
        }
    }
    // Four numbers could be an address, and so could a first number that no kernel has had.
    let is_kernel = kept.first().and_then(|major| major.parse().ok()).is_some_and(|n: u16| n < 10);
    if is_kernel && parts.next().is_none() { kept.join(".") } else { "other".to_owned() }
}

/// Shortens the reason why a value was not read to the system error, if known.
pub(super) fn reason(text: &str) -> String {
    const OURS: &[&str] = &[
        "the host was saved by an earlier version",
        "its features were not read",
        crate::collect::OF_ANOTHER,
        "not this user's, or ended meanwhile: their namespaces and TAP devices may be missing \
         (root sees all)",
    ];
    const PHRASES: &[&str] = &[
        "Permission denied",
        "Operation not permitted",
        "No such file or directory",
        "Operation not supported",
        "No such device",
        "Network is unreachable",
        "No route to host",
        "Invalid argument",
        "Cannot assign requested address",
        "Connection refused",
        "connection tracking",
    ];
    if OURS.contains(&text) {
        return text.to_owned();
    }
    let phrase = PHRASES.iter().find(|phrase| text.contains(**phrase));
    // Names of errors look like `EACCES`. One letter must not be hexadecimal.
    let is_error = |word: &&str| {
        let letters = word.bytes().all(|byte| byte.is_ascii_uppercase());
        word.starts_with('E')
            && (3..=15).contains(&word.len())
            && letters
            && word.bytes().any(|byte| !byte.is_ascii_hexdigit())
    };
    let name = || text.split(|c: char| !c.is_ascii_alphanumeric()).find(is_error);
    match phrase.copied().or_else(name) {
        Some(error) => format!("not read: {error}"),
        None => "not read, reason removed".to_owned(),
    }
}

/// Returns numbers as the kernel prints settings: decimal, of at most ten digits each. A large
/// number could encode an address, so it is rounded to a multiple of the page size, which sizes are
/// anyway.
pub(super) fn numbers(text: &str) -> Option<String> {
    let number = |word: &str| {
        let digits = word.strip_prefix('-').unwrap_or(word);
        let fits = (1..=10).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| word.parse::<i64>().ok().map(|number| rounded(number).to_string()))?
    };
    let words: Option<Vec<String>> = text.split_whitespace().map(number).collect();
    words.filter(|words| !words.is_empty() && words.len() <= 4).map(|words| words.join(" "))
}

fn rounded(number: i64) -> i64 {
    if number.abs() < 1_000_000 { number } else { number / 4096 * 4096 }
}

/// Returns a CPU mask with the same number of bits, the lowest ones; `0` for another text.
pub(super) fn mask(text: &str) -> String {
    let groups = text.trim().split(',');
    let count = groups.map(|group| u32::from_str_radix(group, 16).map(u32::count_ones));
    let count: u32 = count.sum::<Result<u32, _>>().unwrap_or(0);
    let whole = count / 32;
    let rest = (1_u64 << (count % 32)) - 1;
    let low = vec!["ffffffff".to_owned(); whole as usize].join(",");
    match (rest, whole) {
        (rest, 0) => format!("{rest:x}"),
        (0, _) => low,
        (rest, _) => format!("{rest:x},{low}"),
    }
}

/// Returns a rebuilt list of CPUs; `other` for a text that is no such list.
pub(super) fn cpus(text: &str) -> String {
    let Some(cpus) = parse_list(text) else { return "other".to_owned() };
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// Returns the pseudonym of an interrupt: its device's pseudonym, the part that marks a receive
/// queue, and a number.
pub(super) fn interrupt(text: &str, number: usize, devices: &Names) -> String {
    let device = devices.beginning_of(text).and_then(|name| devices.known(name)).unwrap_or("irq");
    let text = text.to_ascii_lowercase();
    match RECEIVE.iter().find(|part| text.contains(**part)) {
        Some(part) => format!("{device}-{part}-{number}"),
        None => format!("{device}-{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_the_kernel_stay_and_addresses_do_not_pass_for_them() {
        for word in [
            "e1000e",
            "mlx5_core",
            "virtio_net",
            "i40e",
            "8139cp",
            "fq_codel",
            "ip6tables-legacy",
            "tx-udp_tnl-csum-segmentation",
            "tx-ipxip4-segmentation",
            "rx-udp_tunnel-port-offload",
            "amd-pstate-epp",
            "vxlan",
            "fcoe-mtu",
            "tx-gre-csum-segmentation",
        ] {
            assert!(is_identifier(word), "{word}");
        }
        for word in [
            "",
            "192.0.2.7",
            "192-0-2-7",
            "x192_0_2_7y",
            "525400123456",
            "52-54-00-ab-cd-ef",
            "aa-bb-cc-dd-ee-ff",
            "enx5254ab99cdef",
            "aabbccddeeff",
            "c0000207",
            "3221225991",
            "2001-db8--a0",
            "db 7",
            "a\u{1b}[31m",
        ] {
            assert!(!is_identifier(word), "{word}");
        }
        assert_eq!(release("6.18.44-fc-v669"), "6.18.44");
        assert_eq!(release("5.4"), "5.4");
        for other in ["10.0.0.1", "192.0.2.7", "6.1.2.3", "525400123456", "", "x"] {
            assert_eq!(release(other), "other", "{other}");
        }
        assert_eq!(
            reason("open /sys/x: Permission denied (os error 13)"),
            "not read: Permission denied"
        );
        assert_eq!(reason("get links of db-7: EACCES"), "not read: EACCES");
        assert!(!reason("db-7 192.0.2.7").contains("192"));
        assert_eq!(numbers("4096 131072 6291456").as_deref(), Some("4096 131072 6291456"));
        // 1.0.32.154 as a number, and a digit.
        assert_eq!(numbers("167855620").as_deref(), Some("167854080"));
        assert_eq!(numbers("525400123456"), None);
        assert_eq!(numbers("192.0.2.7"), None);
        for (from, to) in [
            ("0", "0"),
            ("00,00000000", "0"),
            ("f0", "f"),
            ("52540012,3456", "7fff"),
            ("ffffffff,ffffffff", "ffffffff,ffffffff"),
            ("1,ffffffff", "1,ffffffff"),
            ("x", "0"),
        ] {
            assert_eq!(mask(from), to, "{from}");
        }
        assert_eq!(cpus("3,0-1"), "0-1,3");
        assert_eq!(cpus("192.0.2.7"), "other");
        assert_eq!(hypervisor("VMware, Inc."), "VMware");
    }

    #[test]
    fn interrupts_keep_the_part_that_marks_a_receive_queue() {
        let mut devices = Names::default();
        devices.get("enx5254ab99cdef", "dev", false);
        for (from, to) in [
            ("virtio0-input.0", "irq-input-3"),
            ("virtio2-output.0", "irq-3"),
            ("enx5254ab99cdef-TxRx-0", "dev1-rx-3"),
            ("enx5254ab99cdefrx", "irq-rx-3"),
            ("mlx5_comp3@pci:0000:3b:00.0", "irq-mlx5_comp-3"),
            ("10.0.0.1", "irq-3"),
        ] {
            assert_eq!(interrupt(from, 3, &devices), to);
        }
    }
}
