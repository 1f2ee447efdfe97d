//! Pseudonyms of names, and shortened texts.

use std::collections::{BTreeMap, BTreeSet};

use netstate::cpu::parse_list;

use super::words;

/// Names of one kind and their pseudonyms.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: BTreeMap<String, String>,
    /// Last number used.
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

/// Returns the text if it is on the list, else `other`.
pub(super) fn word(text: &str, list: &[&str]) -> String {
    (if list.contains(&text) { text } else { "other" }).to_owned()
}

/// Whether a device name is a common default with a small number: `eth0`, `br0`, `docker0`.
pub(super) fn is_common_device(name: &str) -> bool {
    const STEMS: &[&str] = &[
        "lo",
        "eth",
        "nic",
        "br",
        "vxlan",
        "veth",
        "tap",
        "tun",
        "bond",
        "team",
        "dummy",
        "ens",
        "eno",
        "wlan",
        "docker",
        "cni",
        "virbr",
        "vtep",
        "kube-ipvs",
        "ovs",
        "flannel.",
        "wg",
        "ifb",
        "gre",
        "sit",
        "ip6tnl",
        "tunl",
        "erspan",
        "gretap",
    ];
    const WHOLE: &[&str] = &[
        "lo",
        "docker_gwbridge",
        "ovs-system",
        "ovs-netdev",
        "br-int",
        "br-ex",
        "br-tun",
        "br-phy",
        "cilium_vxlan",
        "cilium_host",
        "cilium_net",
        "vxlan.calico",
        "vxlan_sys_4789",
        "nodelocaldns",
    ];
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name.len() - stem.len();
    WHOLE.contains(&name) || (1..=3).contains(&digits) && STEMS.contains(&stem)
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

/// Returns the words of a text that are on the list, and with `numbers` one number of at most two
/// digits, or two such numbers joined by a dot. `other` if nothing is left.
pub(super) fn words_of(text: &str, list: &[&str], numbers: bool) -> String {
    let small =
        |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    let is_number = |word: &str| match word.split_once('.') {
        Some((major, minor)) => small(major) && small(minor),
        None => small(word),
    };
    // Keep only one, because several could be parts of an address.
    let mut numbers = numbers;
    let kept = text
        .split_whitespace()
        .filter(|word| list.contains(word) || (is_number(word) && std::mem::take(&mut numbers)));
    let kept = kept.take(12).collect::<Vec<_>>().join(" ");
    if kept.is_empty() { "other".to_owned() } else { kept }
}

/// Returns the listed hypervisor that a text names.
pub(super) fn hypervisor(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let mut known = words::HYPERVISORS.iter();
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
    let name =
        || text.split(|c: char| !c.is_ascii_alphanumeric()).find(|w| words::ERRORS.contains(w));
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

/// Returns an interrupt's name reduced to known driver words, small numbers, and its device's
/// pseudonym. `view` recognises receive queues by a part of the name, which stays.
pub(super) fn interrupt(text: &str, devices: &Names) -> String {
    const PARTS: [&str; 4] = ["mlx5_comp", "input", "ntfy", "rx"];
    let (mut out, rest) = match devices.beginning_of(text) {
        Some(name) => (devices.known(name).unwrap_or("dev").to_owned(), &text[name.len()..]),
        None => (String::new(), text),
    };
    let mut after_number = false;
    for piece in rest.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = word.len() - stem.len();
        let is_number = stem.is_empty() && (1..=3).contains(&digits);
        let is_known = words::INTERRUPTS.contains(&stem) && digits <= 4;
        // Consecutive numbers could be an address.
        if word.is_empty() || is_known || is_number && !after_number {
            out.push_str(word);
        } else {
            out.push('x');
        }
        after_number = stem.is_empty();
        if let Some(mark) = piece[word.len()..].chars().next() {
            out.push(if "-.:@/".contains(mark) { mark } else { '-' });
        }
    }
    let has = |text: &str, part: &str| text.to_ascii_lowercase().contains(part);
    if let Some(part) = PARTS
        .iter()
        .find(|part| has(text, part))
        .filter(|_| !PARTS.iter().any(|part| has(&out, part)))
    {
        out.push('-');
        out.push_str(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_stays_and_what_is_not_goes() {
        for name in ["lo", "eth0", "br0", "docker0", "veth12", "vxlan100", "br-int"] {
            assert!(is_common_device(name), "{name}");
        }
        for name in
            ["enx5254ab99cdef", "eth0.100", "br-1a2b3c4d5e6f", "veth18a5148", "0", "eth", "tap1234"]
        {
            assert!(!is_common_device(name), "{name}");
        }
        assert_eq!(release("6.18.44-fc-v669"), "6.18.44");
        assert_eq!(release("5.4"), "5.4");
        for other in ["10.0.0.1", "192.0.2.7", "6.1.2.3", "525400123456", "", "x"] {
            assert_eq!(release(other), "other", "{other}");
        }
        let os = |text| words_of(text, words::SYSTEMS, true);
        assert_eq!(os("Debian GNU/Linux 12 (bookworm)"), "Debian GNU/Linux 12");
        assert_eq!(os("Ubuntu 24.04 LTS on host-7"), "Ubuntu 24.04 LTS");
        assert_eq!(os("10 0 0 1"), "10");
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
    fn interrupts_keep_what_tells_their_queue() {
        let mut devices = Names::default();
        devices.get("enx5254ab99cdef", "dev", false);
        for (from, to) in [
            ("virtio0-input.0", "virtio0-input.0"),
            ("virtio2-output.0", "virtio2-output.0"),
            ("CAL", "CAL"),
            ("ACPI:Ged", "ACPI:Ged"),
            ("vmx0-rxtx-1", "vmx0-rxtx-1"),
            ("enx5254ab99cdef-TxRx-0", "dev1-TxRx-0"),
            ("enx5254ab99cdefrx", "x-rx"),
            ("mlx5_comp3@pci:0000:3b:00.0", "mlx5_comp3@pci:x:x:00.x"),
            ("10.0.0.1", "10.x.x.x"),
            ("52-54-00-12-34-56", "52-x-x-x-x-x"),
            ("525400123456", "x"),
        ] {
            assert_eq!(interrupt(from, &devices), to);
        }
    }
}
