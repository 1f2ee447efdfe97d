//! A dump without names and addresses: no planted text, in any place and notation, is in the
//! archive, and the diagnosis is the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use doctor::{Host, diagnose, dump, scrub};
use netstate::MacAddr;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

fn saved(name: &str) -> Host {
    let path = format!("{}/tests/hosts/{name}.tar.zst", env!("CARGO_MANIFEST_DIR"));
    dump::read(std::fs::File::open(path).unwrap()).unwrap()
}

fn all_saved() -> Vec<(String, Host)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts");
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let names = names.filter_map(|name| Some(name.strip_suffix(".tar.zst")?.to_owned()));
    names.map(|name| (name.clone(), saved(&name))).collect()
}

/// Findings without names: code, severity, cost, sorted.
fn findings(host: &Host) -> Vec<(String, String, u64)> {
    let found = diagnose(host).findings.into_iter();
    let mut found: Vec<_> = found
        .map(|f| (f.code, format!("{:?} {:?}", f.severity, f.confidence), f.cost.share.to_bits()))
        .collect();
    found.sort();
    found
}

fn hops(host: &Host) -> Vec<Vec<(String, Option<u32>)>> {
    let paths = diagnose(host).paths.into_iter();
    let mut hops: Vec<Vec<_>> =
        paths.map(|path| path.hops.into_iter().map(|hop| (hop.kind, hop.mtu)).collect()).collect();
    hops.sort();
    hops
}

#[test]
fn every_saved_host_is_diagnosed_alike() {
    for (name, host) in all_saved() {
        let scrubbed = scrub::scrub(&host).unwrap();
        assert_eq!(findings(&scrubbed), findings(&host), "{name}");
        assert_eq!(hops(&scrubbed), hops(&host), "{name}");
        // Scrubbing twice is harmless.
        assert_eq!(findings(&scrub::scrub(&scrubbed).unwrap()), findings(&host), "{name}");
    }
}

/// Gives every device udev's name with its MAC address, in every place that names the device.
fn renamed(value: &mut Value, names: &[(String, String)]) {
    let other =
        |text: &str| names.iter().find(|(name, _)| name == text).map(|(_, new)| new.clone());
    match value {
        Value::String(text) => {
            if let Some(new) = other(text) {
                *text = new;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| renamed(value, names)),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            for (key, mut value) in old {
                renamed(&mut value, names);
                let device = key.strip_prefix("net/ipv4/conf/");
                let device = device.and_then(|rest| rest.strip_suffix("/rp_filter"));
                let key = match device.and_then(other) {
                    Some(new) => format!("net/ipv4/conf/{new}/rp_filter"),
                    None => key,
                };
                fields.insert(key, value);
            }
        }
        _ => {}
    }
}

#[test]
fn devices_named_by_their_addresses_are_diagnosed_alike_and_renamed() {
    for (at, (file, host)) in all_saved().into_iter().enumerate() {
        let links = host.namespaces.iter().filter_map(|one| one.interfaces.get()).flatten();
        let mut names: Vec<String> = links.map(|link| link.name.clone()).collect();
        // Names of the daemon itself stay, and a kind's word may also be a name.
        names.retain(|name| {
            !["lo", "ovs-system", "veth", "vxlan", "bridge", "tun"].contains(&name.as_str())
        });
        names.sort();
        names.dedup();
        let names: Vec<(String, String)> = names
            .into_iter()
            .enumerate()
            .map(|(i, name)| (name, format!("enx5254ab{:06x}", 0xc0ffee ^ (at * 256 + i))))
            .collect();
        let mut value = serde_json::to_value(&host).unwrap();
        renamed(&mut value, &names);
        let host: Host = serde_json::from_value(value).unwrap();
        let scrubbed = scrub::scrub(&host).unwrap();
        assert_eq!(findings(&scrubbed), findings(&host), "{file}");
        let text = serde_json::to_string(&scrubbed).unwrap();
        assert!(!text.contains("5254ab"), "{file}");
    }
}

fn notations(address: IpAddr) -> Vec<String> {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            vec![
                v4.to_string(),
                format!("{a}-{b}-{c}-{d}"),
                format!("{a}_{b}_{c}_{d}"),
                format!("{d}.{c}.{b}.{a}"),
                format!("{a:03}.{b:03}.{c:03}.{d:03}"),
                format!("{:08X}", u32::from_le_bytes([a, b, c, d])),
                format!("{:08x}", u32::from(v4)),
                format!("0x{a:02x}{b:02x}{c:02x}{d:02x}"),
                u32::from(v4).to_string(),
                v4.to_ipv6_mapped().to_string(),
            ]
        }
        IpAddr::V6(v6) => {
            let groups: Vec<String> = v6.segments().iter().map(|g| format!("{g:04x}")).collect();
            let digits = groups.concat();
            let words: Vec<String> = v6
                .octets()
                .chunks(4)
                .map(|w| format!("{:08X}", u32::from_le_bytes([w[0], w[1], w[2], w[3]])))
                .collect();
            let nibbles: Vec<String> = digits.chars().rev().map(String::from).collect();
            vec![
                v6.to_string(),
                v6.to_string().to_uppercase(),
                groups.join(":"),
                groups.join("-"),
                digits.clone(),
                digits.to_uppercase(),
                words.concat(),
                nibbles.join("."),
                v6.to_string().replace(':', "-"),
            ]
        }
    }
}

fn mac_notations(mac: MacAddr) -> Vec<String> {
    let pairs: Vec<String> = mac.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let digits = pairs.concat();
    let quads: Vec<&str> = [&digits[..4], &digits[4..8], &digits[8..]].to_vec();
    vec![
        pairs.join(":"),
        pairs.join(":").to_uppercase(),
        pairs.join("-"),
        pairs.join("_"),
        digits.clone(),
        digits.to_uppercase(),
        quads.join("."),
        pairs.iter().rev().cloned().collect::<Vec<_>>().join(":"),
    ]
}

#[derive(Debug, Clone)]
struct Planted {
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
    macs: Vec<MacAddr>,
}

impl Planted {
    fn words(&self) -> Vec<String> {
        let v4 = self.v4.iter().flat_map(|address| notations((*address).into()));
        let v6 = self.v6.iter().flat_map(|address| notations((*address).into()));
        let macs = self.macs.iter().flat_map(|mac| mac_notations(*mac));
        v4.chain(v6).chain(macs).collect()
    }
}

fn planted() -> impl Strategy<Value = Planted> {
    // A number without letters could be a counter.
    let lettered = |text: &str| text.chars().any(|c| c.is_ascii_alphabetic());
    let v4 = prop_oneof![
        any::<[u8; 4]>(),
        any::<[u8; 3]>().prop_map(|[a, b, c]| [10, a, b, c]),
        any::<[u8; 2]>().prop_map(|[a, b]| [192, 168, a, b]),
    ];
    // Addresses that are the same everywhere stay.
    let v4 = v4.prop_filter("somebody's", move |octets| {
        let v4 = Ipv4Addr::from(*octets);
        let says_all = v4.is_loopback() || octets[0] == 0 || octets[0] >= 224 && octets[0] < 225;
        !says_all
            && octets[2] > 31
            && octets[3] > 31
            && lettered(&format!("{:02x}{:02x}", octets[0], octets[3]))
    });
    let v6 = any::<[u8; 16]>().prop_map(|mut octets| {
        octets[0] = 0x20 | octets[0] & 0x1f;
        octets[15] |= 0xa0;
        Ipv6Addr::from(octets)
    });
    let mac = any::<[u8; 6]>().prop_map(|mut octets| {
        octets[0] &= 0xfe;
        octets[5] |= 0xa0;
        octets[3] |= 0xb0;
        MacAddr(octets)
    });
    let several = |strategy| prop::collection::vec(strategy, 1..4);
    (prop::collection::vec(v4, 1..4), several(v6.boxed()), prop::collection::vec(mac, 1..4))
        .prop_map(|(v4, v6, macs)| Planted {
            v4: v4.into_iter().map(Ipv4Addr::from).collect(),
            v6,
            macs,
        })
}

/// A planted word before or after a text. A number with adjacent digits would be another number.
fn glued(left: &str, right: &str, word: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let is_other =
        word.chars().all(is_digit) && left.ends_with(is_digit) && right.starts_with(is_digit);
    format!("{left}{}{right}", if is_other { " " } else { "" })
}

/// Plants words into every text of a host, and addresses where there are addresses.
struct Planter<'a> {
    planted: &'a Planted,
    words: Vec<String>,
    choices: std::iter::Cycle<std::slice::Iter<'a, (Index, u8)>>,
}

impl Planter<'_> {
    fn word(&mut self, before: &str) -> String {
        let (index, way) = self.choices.next().unwrap();
        let word = &self.words[index.index(self.words.len())];
        match way % 6 {
            0 => word.clone(),
            1 => glued(before, word, word),
            2 => glued(word, before, word),
            3 => format!("enx{word}"),
            4 => format!("{before} {word}: {before}"),
            _ => format!("x{word}y"),
        }
    }

    fn plant(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => {
                let (index, _) = self.choices.next().unwrap();
                *text = if text.parse::<Ipv4Addr>().is_ok() {
                    self.planted.v4[index.index(self.planted.v4.len())].to_string()
                } else if text.parse::<Ipv6Addr>().is_ok() {
                    self.planted.v6[index.index(self.planted.v6.len())].to_string()
                } else if text.parse::<MacAddr>().is_ok() {
                    self.planted.macs[index.index(self.planted.macs.len())].to_string()
                } else {
                    self.word(&text.clone())
                };
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.plant(value)),
            Value::Object(fields) => {
                for (key, value) in &mut *fields {
                    match key.as_str() {
                        // The state of a feature and the state of a neighbour are enums.
                        "knowledge" => {}
                        "features" => self.features(value),
                        "sysctls" | "counts" | "governors" => {
                            self.plant(value);
                            self.keys(value);
                        }
                        _ => self.plant(value),
                    }
                }
            }
            _ => {}
        }
    }

    /// Keys that the file chooses.
    fn keys(&mut self, value: &mut Value) {
        let Value::Object(fields) = value else { return };
        for (key, value) in std::mem::take(fields) {
            let (_, way) = self.choices.next().unwrap();
            let planted = self.word(&key);
            let key = match way % 3 {
                0 => key,
                1 => format!("net/ipv4/conf/{planted}/rp_filter"),
                _ => planted,
            };
            fields.insert(key, value);
        }
    }

    fn features(&mut self, value: &mut Value) {
        match value.pointer_mut("/read") {
            Some(features) => self.keys(features),
            None => self.plant(value),
        }
    }
}

/// The archive's bytes, unpacked.
fn unpacked(host: &Host) -> String {
    let mut packed = Vec::new();
    dump::write(host, &mut packed).unwrap();
    assert_eq!(&dump::read(packed.as_slice()).unwrap(), host);
    let bytes = zstd::decode_all(packed.as_slice()).unwrap();
    String::from_utf8_lossy(&bytes).to_ascii_lowercase()
}

/// Hosts with every kind of content: VXLAN, TAPs, Open vSwitch, interrupts, rules.
const HOSTS: [&str; 6] =
    ["vxlan", "swarm", "OV060-vxlan", "OV053-guest", "OV065-ovs-vxlan", "OV044-tap"];

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 64, ..ProptestConfig::with_cases(32) })]

    #[test]
    fn planted_addresses_are_in_no_notation_in_the_archive(
        planted in planted(),
        host in prop::sample::select(&HOSTS[..]),
        choices in prop::collection::vec(any::<(Index, u8)>(), 50..400),
    ) {
        let mut host = saved(host);
        // Fields that these hosts leave empty.
        let clamp = ruleset::Clamp {
            family: "ip".into(), table: "t".into(), chain: "c".into(),
            input: Some(ruleset::Match::Name("x".into())),
            output: Some(ruleset::Match::Prefix("v".into())), mss: None,
        };
        host.namespaces[0].clamps = doctor::host::Reading::Read(vec![clamp]);
        host.machine.scaling = Some(doctor::host::Scaling {
            driver: "d".into(),
            governors: [("g".to_owned(), 1)].into(),
        });
        host.left_out.push(doctor::host::LeftOut { object: "o".into(), reason: "r".into() });
        let tunnels = host.namespaces[0].interfaces.get().cloned().unwrap_or_default();
        let address = "192.0.2.1".parse().unwrap();
        host.far_ends.push(doctor::host::FarEnd { address, tunnels });
        host.machine.arp = doctor::host::Reading::Unread("reason".into());
        host.probed.push(doctor::probed::Probed {
            namespace: 1, cookie: None, index: 1, device: "d".into(), features: vec!["f".into()],
            peer: address, outgoing: true, verdict: "v".into(), detail: "d".into(), classes: 1,
        });
        let mut value = serde_json::to_value(&host).unwrap();
        let words = planted.words();
        let mut planter =
            Planter { planted: &planted, words: words.clone(), choices: choices.iter().cycle() };
        planter.plant(&mut value);
        let host: Host = serde_json::from_value(value).unwrap();
        let before = unpacked(&host);
        prop_assert!(words.iter().any(|word| before.contains(&word.to_ascii_lowercase())));
        let after = unpacked(&scrub::scrub(&host).unwrap());
        for word in &words {
            let word = word.to_ascii_lowercase();
            if let Some(at) = after.find(&word) {
                let around = &after[at.saturating_sub(80)..(at + 80).min(after.len())];
                prop_assert!(false, "{} in …{}…", word, around);
            }
        }
    }
}
