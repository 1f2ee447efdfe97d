//! The fuzz targets `doctor_saved`, `doctor_text` and `doctor_answer` (`fuzz/`) for a
//! bounded number of cases: what they were given to begin with, with a few things
//! wrong. `FUZZ_CASES` changes the number, `FUZZ_SEED` the sequence.

#[path = "../../fuzz/src/doctor.rs"]
mod entries;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What is kept of a target: seeds, and what libFuzzer found worth it.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/");
    let entries = std::fs::read_dir(format!("{directory}{name}")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Calls `target` with everything that is kept, then with damaged versions of it. A
/// panic says which case to look at.
fn run(name: &str, target: fn(&[u8]), cases: u64) {
    let kept = corpus(name);
    assert!(!kept.is_empty(), "{name}: nothing to begin with");
    kept.iter().for_each(|data| target(data));
    let (cases, seed) = (number("FUZZ_CASES", cases), number("FUZZ_SEED", 1));
    for case in 0..cases {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ case << 20);
        let mut data = kept[random.random_range(0..kept.len())].clone();
        for _ in 0..random.random_range(1..8) {
            damage(&mut data, &mut random);
        }
        let outcome = std::panic::catch_unwind(|| target(&data));
        let shown = data[..data.len().min(2000)].escape_ascii();
        assert!(outcome.is_ok(), "{name}: FUZZ_SEED={seed}, case {case}: {shown}");
    }
}

fn damage(data: &mut Vec<u8>, random: &mut Pcg64Mcg) {
    if data.is_empty() {
        return;
    }
    let at = random.random_range(0..data.len());
    let digits = |byte: &u8| byte.is_ascii_digit();
    match random.random_range(0..7) {
        0 => data[at] = random.random(),
        1 => data[at] ^= 1 << random.random_range(0..8),
        2 => data.truncate(at),
        3 => drop(data.remove(at)),
        4 => data.insert(at, b"09-.:{}[],\" \nafx"[random.random_range(0..16)]),
        // Another number in the place of the next one.
        _ => {
            let Some(start) = data[at..].iter().position(digits).map(|next| at + next) else {
                return;
            };
            let length = data[start..].iter().take_while(|byte| digits(byte)).count();
            let edges =
                ["0", "1", "65536", "4294967295", "4294967296", "18446744073709551615", "1e400"];
            let number = edges[random.random_range(0..edges.len())].bytes();
            data.splice(start..start + length, number);
        }
    }
}

#[test]
fn saved() {
    run("doctor_saved", entries::saved, 1500);
}

#[test]
fn text() {
    run("doctor_text", entries::text, 20_000);
}

#[test]
fn answer() {
    run("doctor_answer", entries::answer, 20_000);
}

/// Writes inputs for libFuzzer to begin with, read on the machine that runs it:
/// `cargo test -p overlane-doctor --test fuzz_bounded -- --ignored`.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_seeds() {
    let write = |target: &str, name: &str, data: &[u8]| {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/");
        std::fs::create_dir_all(format!("{directory}{target}")).unwrap();
        std::fs::write(format!("{directory}{target}/seed-{name}"), data).unwrap();
    };
    let hosts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/");
    for name in ["vxlan", "nat", "tap", "ovs-vxlan", "OV064-vxlan-routed", "OV065-guest"] {
        let packed = std::fs::read(format!("{hosts}{name}.tar.zst")).unwrap();
        let mut host = doctor::dump::read(packed.as_slice()).unwrap();
        write("doctor_saved", &format!("{name}.tar.zst"), &packed);
        // Small: most features of most devices say nothing to a check.
        host.namespaces.truncate(2);
        for device in host.namespaces.iter_mut().flat_map(|one| one.devices.values_mut()) {
            if let Some(doctor::host::Reading::Read(features)) = &mut device.features {
                features.retain(|name, _| name.contains("tnl") || name.starts_with("rx-"));
            }
        }
        write("doctor_saved", name, &serde_json::to_vec(&host).unwrap());
    }
    for file in [
        "net/softnet_stat",
        "net/snmp",
        "net/netstat",
        "net/snmp6",
        "net/udp",
        "net/stat/arp_cache",
        "net/stat/nf_conntrack",
        "stat",
        "interrupts",
        "self/stat",
    ] {
        // Not every kernel has connection tracking.
        if let Ok(text) = std::fs::read(format!("/proc/{file}")) {
            write("doctor_text", &file.replace('/', "-"), &text[..text.len().min(4096)]);
        }
    }
    write("doctor_text", "cpus", b"0-3,8\n");
    let shown = "netdev@ovs-netdev:\n  lookups: hit:23 missed:7 lost:1\n  flows: 3\n";
    write("doctor_text", "dpctl-show", shown.as_bytes());
    let reply = serde_json::json!({ "id": 0, "result": shown, "error": null }).to_string();
    write("doctor_text", "reply", reply.as_bytes());
    // Answers of a kernel.
    for (name, data) in [("rule", rule()), ("datapath", datapath()), ("table", table())] {
        write("doctor_answer", name, &data);
    }
}

/// `struct nlattr` with a value, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `oifname nic0 tcp option maxseg size set 1360`, as nftables lists it.
fn rule() -> Vec<u8> {
    let number = |kind, number: u32| attribute(kind, &number.to_be_bytes());
    let expression = |name: &str, data: Vec<Vec<u8>>| {
        let inside = [attribute(1, name.as_bytes()), attribute(2, &data.concat())].concat();
        attribute(1, &inside)
    };
    let name = attribute(3, &attribute(1, b"nic0\0\0\0\0\0\0\0\0\0\0\0\0"));
    let size = attribute(2, &attribute(1, &1360_u16.to_be_bytes()));
    let expressions = [
        expression("meta", vec![number(2, 7), number(1, 1)]),
        expression("cmp", vec![number(1, 1), number(2, 0), name]),
        expression("immediate", vec![number(1, 1), size]),
        expression("exthdr", vec![number(7, 1), attribute(2, &[2]), number(6, 1)]),
    ];
    let named = [attribute(1, b"mss\0"), attribute(2, b"forward\0")].concat();
    [&[1, 0, 0, 0][..], &named, &attribute(4, &expressions.concat())].concat()
}

fn datapath() -> Vec<u8> {
    let counts: Vec<u8> = [23_u64, 7, 1, 3].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let attributes = [attribute(1, b"ovs-system\0"), attribute(3, &counts)].concat();
    [&[1, 2, 0, 0, 5, 0, 0, 0][..], &attributes].concat()
}

/// One rule of a legacy table: `-o nic0 -j TCPMSS --clamp-mss-to-pmtu`.
fn table() -> Vec<u8> {
    let mut entry = vec![0; 112 + 40];
    entry[32..36].copy_from_slice(b"nic0");
    entry[64..69].fill(0xff);
    entry[88..90].copy_from_slice(&112_u16.to_ne_bytes());
    entry[90..92].copy_from_slice(&152_u16.to_ne_bytes());
    entry[112 + 2..112 + 8].copy_from_slice(b"TCPMSS");
    entry[112 + 32..112 + 34].fill(0xff);
    [&[0; 5][..], &entry].concat()
}

/// The seeds are what they are meant to be.
#[test]
fn answers_are_understood() {
    let clamp = netstate::netfilter::nft_clamp(&rule()).unwrap();
    assert_eq!((clamp.mss, clamp.chain.as_str()), (Some(1360), "forward"));
    assert!(clamp.output.unwrap().is("nic0", 9));
    assert_eq!(netstate::openvswitch::kernel_datapath(&datapath()).unwrap().lost, 1);
    let table = sys::xtables::Table { hooks: [None; 5], entries: table()[5..].to_vec() };
    let clamps = netstate::netfilter::table_clamps(false, "mangle", &table);
    assert_eq!((clamps.len(), clamps[0].mss), (1, None));
    assert!(!clamps[0].output.as_ref().unwrap().is("nic1", 9));
}
