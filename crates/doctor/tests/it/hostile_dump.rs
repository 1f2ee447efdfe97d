//! Saved hosts made to harm their reader. A counting allocator gives the most memory that the
//! program held.

use std::io::{self, Read, Write};

use doctor::dump;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};
use test_support::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: u64 = 1 << 20;
/// Limit of memory held while any file is read and judged: the state of the host twice, the window
/// of the decompressor, and the findings.
const MOST: u64 = 160 * MIB;

type Archive = Builder<zstd::Encoder<'static, Vec<u8>>>;

fn archive() -> Archive {
    Builder::new(zstd::Encoder::new(Vec::new(), 0).unwrap())
}

fn packed(archive: Archive) -> Vec<u8> {
    archive.into_inner().unwrap().finish().unwrap()
}

fn entry(archive: &mut Archive, kind: EntryType, name: &str, size: u64, data: impl Read) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    // Names that the library would not write.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_cksum();
    archive.append(&header, data.take(size)).unwrap();
}

/// A small healthy host as JSON.
fn host() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/vxlan.tar.zst");
    let host = dump::read(std::fs::File::open(path).unwrap()).unwrap();
    serde_json::to_value(host).unwrap()
}

fn saved(text: &[u8]) -> Vec<u8> {
    let mut archive = archive();
    entry(&mut archive, EntryType::Regular, "host.json", text.len() as u64, text);
    packed(archive)
}

/// Result of reading a file, and the most bytes held meanwhile.
fn read(packed: &[u8]) -> (Result<doctor::Diagnosis, String>, u64) {
    let before = Counting::held();
    Counting::forget_peak();
    let result = dump::read(packed).map(|host| doctor::diagnose(&host));
    let most = Counting::peak() - before;
    (result.map_err(|error| error.to_string()), most)
}

#[track_caller]
fn refused(packed: &[u8], words: &[&str]) {
    let (result, most) = read(packed);
    let error = result.expect_err("it is refused");
    for word in words {
        assert!(error.contains(word), "no {word:?} in: {error}");
    }
    assert!(error.len() < 1000, "{} bytes: {:.200}", error.len(), error);
    assert!(most < MOST, "{} MiB for {} bytes: {error}", most / MIB, packed.len());
}

/// Repeated text that is never held in memory as a whole.
fn repeated(head: &str, part: &str, times: usize, tail: &str) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 0).unwrap();
    let size = head.len() + part.len() * times + tail.len();
    let mut header = Header::new_gnu();
    header.set_path("host.json").unwrap();
    header.set_size(size as u64);
    header.set_cksum();
    encoder.write_all(header.as_bytes()).unwrap();
    encoder.write_all(head.as_bytes()).unwrap();
    let many = part.repeat((MIB as usize / part.len()).clamp(1, times.max(1)));
    let mut left = part.len() * times;
    while left > 0 {
        let now = left.min(many.len());
        encoder.write_all(&many.as_bytes()[..now]).unwrap();
        left -= now;
    }
    encoder.write_all(tail.as_bytes()).unwrap();
    encoder.write_all(&vec![0; 1024 + (512 - size % 512) % 512]).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_long_text_behind_a_small_archive_is_not_read() {
    // Blanks, which JSON allows anywhere.
    refused(&repeated("{\"format\":1,", " ", 900 << 20, "}"), &["host.json", "67108864 bytes"]);
    // A size in the header without the data.
    let mut bytes = Vec::new();
    let mut header = Header::new_gnu();
    header.set_path("host.json").unwrap();
    header.set_size(1 << 40);
    header.set_cksum();
    bytes.extend(header.as_bytes());
    refused(&zstd::encode_all(&bytes[..], 0).unwrap(), &["host.json", "67108864 bytes"]);
}

#[test]
fn values_that_take_more_memory_than_text_are_counted() {
    let mut whole = host();
    whole["namespaces"][0]["devices"] = json!({"9": "HERE"});
    let text = whole.to_string();
    let (head, tail) = text.split_once("\"9\":\"HERE\"").unwrap();
    // Devices without fields: 10 bytes each here, some hundred in memory.
    let devices: String = (10..2_000_000).map(|index| format!("\"{index}\":{{}},")).collect();
    refused(&repeated(head, &devices, 1, &format!("\"9\":{{}}{tail}")), &["host.json", "memory"]);
    let mut whole = host();
    whole["namespaces"][0]["devices"] = json!({"9": {"rps": ["HERE"]}});
    let text = whole.to_string();
    let (head, tail) = text.split_once("\"HERE\"").unwrap();
    refused(&repeated(head, "\"\",", 20_000_000, &format!("\"\"{tail}")), &["host.json", "memory"]);
}

#[test]
fn names_and_extensions_are_short() {
    for kind in [
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ] {
        let mut archive = archive();
        entry(&mut archive, kind, "././@LongLink", 400 * MIB, io::repeat(b'a'));
        entry(&mut archive, EntryType::Regular, "host.json", 2, &b"{}"[..]);
        refused(&packed(archive), &["extension header", "at most 65536", "419430400"]);
    }
    // A hundred thousand small ones.
    let mut archive = archive();
    for _ in 0..100_000 {
        entry(&mut archive, EntryType::XHeader, "pax", 512, io::repeat(b'a'));
    }
    refused(&packed(archive), &["entries", "64"]);
}

#[test]
fn other_members_are_few_and_small() {
    let mut small = archive();
    for _ in 0..1_000_000 / 512 {
        entry(&mut small, EntryType::Regular, "x", 0, io::empty());
    }
    refused(&packed(small), &["more than 64 entries"]);
    let mut large = archive();
    entry(&mut large, EntryType::Regular, "x", 900 * MIB, io::repeat(0));
    refused(&packed(large), &["bytes"]);
}

#[test]
fn only_regular_files_are_saved_hosts() {
    for (kind, name) in [
        (EntryType::Symlink, "symbolic link"),
        (EntryType::Link, "hard link"),
        (EntryType::Fifo, "FIFO"),
        (EntryType::Char, "character device"),
        (EntryType::Block, "block device"),
        (EntryType::Directory, "directory"),
        (EntryType::GNUSparse, "sparse file"),
        (EntryType::new(b'Z'), "entry of type 'Z'"),
    ] {
        let mut archive = archive();
        entry(&mut archive, kind, "host.json", 0, io::empty());
        refused(&packed(archive), &["host.json", name, "a regular file"]);
    }
    // A sparse file of a terabyte, as GNU tar writes it.
    let mut header = Header::new_gnu();
    header.set_path("host.json").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_is_extended(true);
    gnu.realsize = *b"77777777777\0";
    header.set_cksum();
    let bytes = [header.as_bytes().to_vec(), vec![1; 64 * 512]].concat();
    refused(&zstd::encode_all(&bytes[..], 0).unwrap(), &["sparse file"]);
}

#[test]
fn only_one_host_and_by_its_own_name() {
    let text = host().to_string();
    let mut twice = archive();
    for _ in 0..2 {
        entry(&mut twice, EntryType::Regular, "host.json", text.len() as u64, text.as_bytes());
    }
    refused(&packed(twice), &["host.json", "twice"]);
    for name in ["../host.json", "/host.json", "a/../host.json", "host.json/", "HOST.JSON"] {
        let mut other = archive();
        entry(&mut other, EntryType::Regular, name, text.len() as u64, text.as_bytes());
        refused(&packed(other), &["no host.json"]);
    }
    // Ordinary extension headers and other members do no harm.
    let mut archive = archive();
    entry(&mut archive, EntryType::XGlobalHeader, "pax", 20, &b"20 comment=nothing.\n"[..]);
    entry(&mut archive, EntryType::Directory, "./", 0, io::empty());
    entry(&mut archive, EntryType::Regular, "README", 6, &b"words\n"[..]);
    entry(&mut archive, EntryType::Regular, "host.json", text.len() as u64, text.as_bytes());
    assert!(read(&packed(archive)).0.is_ok());
}

#[test]
fn a_window_that_takes_gigabytes_is_refused() {
    // RFC 8878: magic, a frame header with a window of 2^41 bytes, one empty last block.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3, 0x01, 0x00, 0x00];
    refused(&frame, &["not a saved host"]);
    // 1 GiB, which the library would accept in its long mode.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 0x01, 0x00, 0x00];
    refused(&frame, &["not a saved host"]);
    // 128 MiB, which it would accept by default.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x01, 0x00, 0x00];
    refused(&frame, &["not a saved host", "memory"]);
}

#[test]
fn deep_long_and_large_things_are_named() {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    refused(
        &saved(format!("{{\"format\":1,\"program\":{}}}", deep(100_000)).as_bytes()),
        &["levels"],
    );
    refused(
        &saved(format!("{{\"format\":{}}}", "9".repeat(1 << 20)).as_bytes()),
        &["the number at byte", "longer than 64 bytes"],
    );
    refused(
        &repeated("{\"format\":1,\"program\":\"", "a", 60 << 20, "\"}"),
        &["the string at byte", "longer than 16384 bytes"],
    );
    for number in ["1e400", "NaN", "-1", "1e-400", "18446744073709551616", "Infinity", "0x10"] {
        let mut text = host().to_string();
        text = text.replacen("\"format\":1", &format!("\"format\":{number}"), 1);
        refused(&saved(text.as_bytes()), &["host.json"]);
    }
    // An unknown name of a megabyte.
    let long = "n".repeat(1 << 15);
    refused(&saved(format!("{{\"format\":1,\"{long}\":1}}").as_bytes()), &["host.json"]);
}

#[test]
fn entries_too_large_to_read_are_not_written() {
    let mut large: doctor::Host = serde_json::from_value(host()).unwrap();
    let one = large.namespaces[0].clone();
    while large.namespaces.len() < 12_000 {
        large.namespaces.push(one.clone());
    }
    let error = dump::write(&large, io::sink()).unwrap_err().to_string();
    assert!(error.contains("host.json") && error.contains("at most"), "{error}");
}
