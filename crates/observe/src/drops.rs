//! Counts of dropped packets by the kernel's reason and place: loads and reads `bpf/drops.bpf.c`.
//!
//! The program is attached to the trace point `skb:kfree_skb`, which every drop passes and no
//! delivery does. It counts only in the namespaces that [`Drops::watch`] names.
//!
//! It needs CAP_BPF and CAP_PERFMON in the initial user namespace, and Linux 5.17 or newer with
//! BTF. Before 6.11, a drop at a full socket buffer does not identify the socket; such drops are
//! left to the kernel's counters.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};

use bpf_load::DropReasons;
use libbpf_rs::btf::ReferencesType;
use libbpf_rs::btf::types::{FuncProto, Typedef};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/drops.bpf.o"));

/// `struct drop_key` of the C source: location, namespace, reason, device.
const KEY_BYTES: usize = 8 + 4 + 4 + DEVICE_BYTES;
const DEVICE_BYTES: usize = 16;
const _: () = assert!(KEY_BYTES == 32, "the C source asserts the same");

/// Number of arguments of the trace point with the receiving socket (Linux 6.11), including the
/// data pointer of every trace point function. With the reason only (5.17) there is one less.
const WITH_SOCKET: usize = 5;

/// A place and reason, as the BPF program counts drops.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    location: u64,
    netns: u32,
    reason: u32,
    device: [u8; DEVICE_BYTES],
}

impl Key {
    fn parse(bytes: &[u8]) -> Option<Key> {
        let bytes: &[u8; KEY_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut location = [0; 8];
        location.copy_from_slice(&bytes[..8]);
        let mut device = [0; DEVICE_BYTES];
        device.copy_from_slice(&bytes[16..]);
        Some(Key {
            location: u64::from_ne_bytes(location),
            netns: word(8),
            reason: word(12),
            device,
        })
    }

    fn device(&self) -> String {
        let name = self.device.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

/// The counts could not be read, or a namespace could not be added.
#[derive(Debug, thiserror::Error)]
#[error("counts of drops: {reason}")]
pub struct DropsError {
    /// The failed operation and its error.
    reason: String,
}

/// All drops counted so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DropsReading {
    counts: BTreeMap<Key, u64>,
}

/// Packets dropped at one place for one reason.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Dropped {
    /// Inode number of the network namespace.
    pub netns: u64,
    /// Device of the packet; empty if there was none (sockets).
    pub device: String,
    /// The kernel's reason, without its prefix (`SOCKET_RCVBUFF`).
    pub reason: String,
    /// The kernel function that dropped it (`udp_queue_rcv_one_skb`), if `/proc/kallsyms` is
    /// readable.
    pub function: Option<String>,
    /// Number of packets; a GSO packet counts as the packets it stands for.
    pub packets: u64,
}

/// The loaded program. It counts until this value is dropped.
#[derive(Debug)]
pub struct Drops {
    spaces: MapHandle,
    drops: MapHandle,
    reasons: DropReasons,
    /// Cache of functions by location.
    functions: Mutex<BTreeMap<u64, Option<String>>>,
    // Dropping it detaches the program.
    _link: Link,
}

impl Drops {
    /// Loads and attaches the program.
    ///
    /// # Errors
    /// Returns the reason why this machine cannot count drops.
    pub fn open() -> Result<Drops, String> {
        let (mut object, btf) = bpf_load::open(OBJECT)?;
        let arguments = btf
            .type_by_name::<Typedef<'_>>("btf_trace_kfree_skb")
            .and_then(|typedef| typedef.referenced_type().next_type())
            .and_then(|function| FuncProto::try_from(function).ok())
            .ok_or("the kernel has no trace point skb:kfree_skb")?
            .len();
        let reasons = bpf_load::drop_reasons(&btf)?;
        let program = match arguments {
            WITH_SOCKET.. => "kfree_skb_of_socket",
            4 => "kfree_skb",
            got => {
                return Err(format!(
                    "trace point skb:kfree_skb has {got} arguments, expected at least 4: \
                     drops have reasons since Linux 5.17"
                ));
            }
        };
        for mut other in object.progs_mut().filter(|other| other.name() != OsStr::new(program)) {
            other.set_autoload(false);
        }
        let object = bpf_load::load(object)?;
        let map = |name, key, value| bpf_load::map(&object, name, key, value);
        let (spaces, drops) = (map("spaces", 4, 4)?, map("drops", KEY_BYTES, 8)?);
        let link = object
            .progs_mut()
            .find(|found| found.name() == OsStr::new(program))
            .ok_or_else(|| format!("the BPF object has no program {program:?}"))?
            .attach()
            .map_err(|e| format!("attaching to skb:kfree_skb: {e}"))?;
        Ok(Drops { spaces, drops, reasons, functions: Mutex::default(), _link: link })
    }

    /// Starts counting in the namespace with this inode number.
    ///
    /// # Errors
    /// If there are more namespaces than the program's map has room for.
    pub fn watch(&self, netns: u64) -> Result<(), DropsError> {
        let failed = |reason: String| DropsError { reason };
        let inode = u32::try_from(netns)
            .map_err(|_| failed(format!("net:[{netns}]: an inode number has 32 bits")))?;
        self.spaces
            .update(&inode.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| failed(format!("adding net:[{netns}] to map \"spaces\": {e}")))
    }

    /// Reads all counts.
    pub fn read(&self) -> Result<DropsReading, DropsError> {
        let failed = |reason: String| DropsError { reason };
        let mut counts = BTreeMap::new();
        // Entries are never removed, so iterating over the map ends, and finds every entry that
        // existed before.
        for bytes in self.drops.keys() {
            let value = self
                .drops
                .lookup(&bytes, MapFlags::ANY)
                .map_err(|e| failed(format!("reading map \"drops\": {e}")))?;
            let count = value.and_then(|value| Some(u64::from_ne_bytes(value.try_into().ok()?)));
            if let Some((key, count)) = Key::parse(&bytes).zip(count) {
                counts.insert(key, count);
            }
        }
        Ok(DropsReading { counts })
    }

    /// Returns the drops between two readings, in no particular order.
    pub fn difference(&self, before: &DropsReading, after: &DropsReading) -> Vec<Dropped> {
        let new: Vec<(&Key, u64)> = after
            .counts
            .iter()
            .map(|(key, count)| {
                // A reason that is new since the last reading counts from zero.
                (key, count.saturating_sub(before.counts.get(key).copied().unwrap_or(0)))
            })
            .filter(|(_, packets)| *packets > 0)
            .collect();
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown: Vec<u64> = new
            .iter()
            .map(|(key, _)| key.location)
            .filter(|location| !functions.contains_key(location))
            .collect();
        if !unknown.is_empty() {
            functions.extend(bpf_load::functions(&unknown));
        }
        new.into_iter()
            .map(|(key, packets)| Dropped {
                netns: u64::from(key.netns),
                device: key.device(),
                reason: self.reasons.name(key.reason),
                function: functions.get(&key.location).cloned().flatten(),
                packets,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_the_program_writes_it() {
        let mut bytes = [0; KEY_BYTES];
        bytes[..8].copy_from_slice(&0xffff_ffff_8100_0042_u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&4_026_531_840_u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&6_u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(b"nic0");
        let key = Key::parse(&bytes).unwrap();
        assert_eq!((key.location, key.netns, key.reason), (0xffff_ffff_8100_0042, 0xf000_0000, 6));
        assert_eq!(key.device(), "nic0");
        assert_eq!(Key::parse(&bytes[1..]), None);
    }
}
