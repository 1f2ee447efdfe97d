//! Inputs of `doctor_saved`, `doctor_text` and `doctor_answer`: saved hosts of the tests,
//! files from this machine's `/proc`, kernel answers, and malformed archives.

#[path = "../../../doctor/tests/it/fuzz_bounded/answers.rs"]
mod answers;

use answers::{datapath, rule, table};
use anyhow::ensure;
use tar::{EntryType, Header};

use super::keep;

/// Saved hosts of the tests of `doctor`.
const HOSTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../doctor/tests/hosts/");

/// Writes the well-formed inputs. Reads `/proc` of this machine.
pub fn seeds() -> anyhow::Result<()> {
    for name in ["vxlan", "nat", "tap", "ovs-vxlan", "OV064-vxlan-routed", "OV065-guest"] {
        let packed = std::fs::read(format!("{HOSTS}{name}.tar.zst"))?;
        let mut host = doctor::dump::read(packed.as_slice())?;
        seed("doctor_saved", &format!("{name}.tar.zst"), &packed)?;
        // Keep the input small: checks ignore most features of a device.
        host.namespaces.truncate(2);
        for device in host.namespaces.iter_mut().flat_map(|one| one.devices.values_mut()) {
            if let Some(doctor::host::Reading::Read(features)) = &mut device.features {
                features.retain(|name, _| name.contains("tnl") || name.starts_with("rx-"));
            }
        }
        seed("doctor_saved", name, &serde_json::to_vec(&host)?)?;
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
        // Skip missing files: not every kernel has connection tracking.
        if let Ok(text) = std::fs::read(format!("/proc/{file}")) {
            seed("doctor_text", &file.replace('/', "-"), &text[..text.len().min(4096)])?;
        }
    }
    seed("doctor_text", "cpus", b"0-3,8\n")?;
    let shown = "netdev@ovs-netdev:\n  lookups: hit:23 missed:7 lost:1\n  flows: 3\n";
    seed("doctor_text", "dpctl-show", shown.as_bytes())?;
    let reply = serde_json::json!({ "id": 0, "result": shown, "error": null }).to_string();
    seed("doctor_text", "reply", reply.as_bytes())?;
    // Recorded answers of a kernel.
    for (name, data) in [("rule", rule()), ("datapath", datapath()), ("table", table())] {
        seed("doctor_answer", name, &data)?;
    }
    Ok(())
}

/// Writes malformed archives and texts. Each is small, because libFuzzer works best on small
/// inputs.
pub fn hostile() -> anyhow::Result<()> {
    let write = |name: &str, data: &[u8]| {
        ensure!(data.len() < 8192, "{name}: {} bytes", data.len());
        keep("doctor_saved", &format!("seed-hostile-{name}"), data)
    };
    let packed = std::fs::read(format!("{HOSTS}vxlan.tar.zst"))?;
    let host = doctor::dump::read(packed.as_slice())?;
    let text = serde_json::to_vec(&host)?;
    let entry = |kind: EntryType, name: &str, size: u64, data: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(size);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    };
    let whole = entry(EntryType::Regular, "host.json", text.len() as u64, &text);
    let archive = |name: &str, parts: &[&[u8]]| -> anyhow::Result<()> {
        write(name, &zstd::encode_all(&parts.concat()[..], 19)?)
    };
    let long = vec![b'a'; 60_000];
    for (name, kind) in [
        ("long-name", EntryType::GNULongName),
        ("long-link", EntryType::GNULongLink),
        ("pax", EntryType::XHeader),
        ("pax-global", EntryType::XGlobalHeader),
    ] {
        archive(name, &[&entry(kind, "x", 60_000, &long), &whole])?;
        archive(&format!("{name}-large"), &[&entry(kind, "x", 1 << 33, &long), &whole])?;
    }
    for (name, kind) in [
        ("symlink", EntryType::Symlink),
        ("link", EntryType::Link),
        ("device", EntryType::Char),
        ("sparse", EntryType::GNUSparse),
        ("directory", EntryType::Directory),
    ] {
        archive(name, &[&entry(kind, "host.json", 0, &[]), &whole])?;
    }
    archive("twice", &[&whole, &whole])?;
    archive("elsewhere", &[&entry(EntryType::Regular, "../host.json", 2, b"{}"), &whole])?;
    archive("many", &[&entry(EntryType::Regular, "x", 0, &[]).repeat(100), &whole])?;
    archive("large", &[&entry(EntryType::Regular, "host.json", 1 << 40, &text)])?;
    let lying = entry(EntryType::Regular, "host.json", u64::MAX >> 30, &text);
    archive("lying", &[&lying])?;
    archive("blanks", &[&entry(EntryType::Regular, "host.json", 1 << 20, &[b' '; 1 << 20])])?;
    write("window", &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3, 0x01, 0x00, 0x00])?;
    write("deep", format!("{{\"format\":1,\"program\":{}", "[".repeat(4000)).as_bytes())?;
    write("number", format!("{{\"format\":1{}}}", "0".repeat(4000)).as_bytes())?;
    write(
        "string",
        format!("{{\"format\":1,\"program\":\"{}\"}}", "\\u0000".repeat(1000)).as_bytes(),
    )?;
    let devices: String = (0..400).map(|index| format!("\"{index}\":{{}},")).collect();
    let text = format!("{{\"format\":1,\"namespaces\":[{{\"devices\":{{{devices}");
    write("devices", text.as_bytes())?;
    Ok(())
}

fn seed(target: &str, name: &str, data: &[u8]) -> anyhow::Result<()> {
    keep(target, &format!("seed-{name}"), data)
}
