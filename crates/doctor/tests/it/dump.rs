//! Saved hosts: a written host is read back unchanged. A damaged one is refused or diagnosed, and
//! never causes a panic.

use std::sync::LazyLock;
use std::time::Duration;

use doctor::{Host, Scope, collect, diagnose, dump};
use proptest::prelude::*;
use serde_json::Value;
use sys::netns::NetNs;

/// The reader's own namespace, which every user may read.
static HOST: LazyLock<Host> = LazyLock::new(|| {
    let own = vec![("own".to_owned(), NetNs::current().unwrap())];
    collect(Scope::Some(own), Duration::ZERO).unwrap()
});

fn saved() -> Vec<u8> {
    let mut bytes = Vec::new();
    dump::write(&HOST, &mut bytes).unwrap();
    bytes
}

#[test]
fn written_entries_are_read_back() {
    let read = dump::read(saved().as_slice()).unwrap();
    assert_eq!(read, *HOST);
    assert_eq!(diagnose(&read), diagnose(&HOST));
}

#[test]
fn another_file_is_refused_by_name() {
    let refused = |bytes: &[u8]| dump::read(bytes).unwrap_err().to_string();
    assert!(refused(b"").contains("not a saved host"), "{}", refused(b""));
    assert!(refused(b"plain text").contains("not a saved host"));
    let mut other = HOST.clone();
    other.format = 99;
    let mut bytes = Vec::new();
    dump::write(&other, &mut bytes).unwrap();
    assert!(refused(&bytes).contains("format 99"), "{}", refused(&bytes));
}

#[test]
fn a_scrubbed_host_is_diagnosed_alike() {
    let scrubbed = doctor::scrub::scrub(&HOST).unwrap();
    let codes = |host: &Host| -> Vec<String> {
        diagnose(host).findings.into_iter().map(|finding| finding.code).collect()
    };
    assert_eq!(codes(&scrubbed), codes(&HOST));
}

/// JSON pointers to all values.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                pointers(value, &format!("{at}/{index}"), all);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(value, &format!("{at}/{name}"), all);
            }
        }
        _ => {}
    }
    all.push(at.to_owned());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_damaged_archive_never_panics(at in any::<prop::sample::Index>(), byte: u8, cut: bool) {
        let mut bytes = saved();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= byte }
        if let Ok(host) = dump::read(bytes.as_slice()) {
            diagnose(&host);
        }
    }

    /// Impossible numbers in any place.
    #[test]
    fn an_impossible_host_never_panics(
        places in prop::collection::vec((any::<prop::sample::Index>(), 0..6_usize), 1..40),
    ) {
        let mut value = serde_json::to_value(&*HOST).unwrap();
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        for (place, kind) in places {
            let Some(found) = value.pointer_mut(&all[place.index(all.len())]) else { continue };
            let extreme = [0, 1, u64::from(u32::MAX), u64::MAX][kind % 4];
            match found {
                Value::Number(_) => *found = extreme.into(),
                Value::String(text) => *text = ["", "0", "$(x)", "veth", "vxlan", "tun"][kind].into(),
                Value::Bool(on) => *on = !*on,
                _ => {}
            }
        }
        if let Ok(host) = serde_json::from_value::<Host>(value) {
            diagnose(&host);
        }
    }
}
