//! Device features, rings, queues and interrupt moderation by ethtool ioctls: what `ethtool -k`,
//! `-g`, `-l` and `-c` show, and `-K`, `-G`, `-L` and `-C` set.
//!
//! Acts on devices of the network namespace in which the calling thread was when the [`Ethtool`]
//! was opened. Layouts: `include/uapi/linux/ethtool.h`.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{Error, Result};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_SCOALESCE: u32 = 0x0f;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_SRINGPARAM: u32 = 0x11;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_GPERMADDR: u32 = 0x20;
const ETHTOOL_GRXFH: u32 = 0x29;
const UDP_V4_FLOW: u32 = 0x02;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// `RXH_L4_B_0_1 | RXH_L4_B_2_3`: source and destination port of TCP and UDP.
pub const HASH_PORTS: u64 = 1 << 6 | 1 << 7;
/// More features than any kernel has (6.18: 64); limits the count accepted from the kernel.
const MAX_FEATURES: usize = 512;

/// Parameters of interrupt moderation with the names of `ethtool -C`, in the order of
/// `struct ethtool_coalesce`.
pub const COALESCE: [&str; 22] = [
    "rx-usecs",
    "rx-frames",
    "rx-usecs-irq",
    "rx-frames-irq",
    "tx-usecs",
    "tx-frames",
    "tx-usecs-irq",
    "tx-frames-irq",
    "stats-block-usecs",
    "adaptive-rx",
    "adaptive-tx",
    "pkt-rate-low",
    "rx-usecs-low",
    "rx-frames-low",
    "tx-usecs-low",
    "tx-frames-low",
    "pkt-rate-high",
    "rx-usecs-high",
    "rx-frames-high",
    "tx-usecs-high",
    "tx-frames-high",
    "sample-interval",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    pub active: bool,
    /// Whether the user may change it (otherwise ethtool shows `[fixed]`).
    pub changeable: bool,
}

/// The number in use and the maximum number of a resource of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// The number in use.
    pub now: u32,
    /// The maximum number that the device supports.
    pub most: u32,
}

/// The rings of a device, in descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings {
    /// Descriptors of the receive ring.
    pub rx: Amount,
    /// Descriptors of the transmit ring.
    pub tx: Amount,
}

/// The queues of a device (`ETHTOOL_GCHANNELS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// Queues for receiving only.
    pub rx: Amount,
    /// Queues for transmitting only.
    pub tx: Amount,
    /// Queues for both directions.
    pub combined: Amount,
}

/// A socket for ethtool requests in the namespace in which it was opened.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

/// `struct ifreq` with its union as a pointer, padded to the kernel's 40 bytes.
#[repr(C)]
struct Ifreq {
    name: [u8; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    _rest_of_union: [u8; 16],
}

const _: () = assert!(size_of::<Ifreq>() == 40);

impl Ethtool {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn open() -> Result<Ethtool> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
            .map_err(|e| Error::new("socket", "AF_INET for ethtool", e))?;
        Ok(Ethtool { socket })
    }

    /// Returns all features of a device by kernel name (`tx-udp_tnl-segmentation`).
    ///
    /// # Errors
    /// `ENODEV` if there is no such device.
    pub fn features(&self, device: &str) -> Result<BTreeMap<String, Feature>> {
        let names = self.feature_names(device)?;
        let blocks = names.len().div_ceil(32);
        // struct ethtool_gfeatures: cmd, size, then blocks of
        // { available, requested, active, never_changed }.
        let mut request = vec![0u32; 2 + 4 * blocks];
        request[0] = ETHTOOL_GFEATURES;
        request[1] = blocks as u32;
        self.call("ETHTOOL_GFEATURES", device, &mut request)?;
        let mut features = BTreeMap::new();
        for (bit, name) in names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let block = &request[2 + 4 * (bit / 32)..][..4];
            let mask = 1u32 << (bit % 32);
            features.insert(
                name,
                Feature {
                    active: block[2] & mask != 0,
                    changeable: block[0] & mask != 0 && block[3] & mask == 0,
                },
            );
        }
        Ok(features)
    }

    /// Whether a device merges received segments (`generic-receive-offload`).
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn merges(&self, device: &str) -> Result<bool> {
        // struct ethtool_value: cmd, data.
        let mut request = [ETHTOOL_GGRO, 0];
        self.call("ETHTOOL_GGRO", device, &mut request)?;
        Ok(request[1] != 0)
    }

    /// Switches features on or off. A feature that the kernel does not know is an error. A feature
    /// that the kernel refuses to change keeps its value, so read the features back.
    ///
    /// # Errors
    /// `EINVAL` with the name of an unknown feature, `EPERM`, `ENODEV`.
    pub fn set_features(&self, device: &str, wanted: &[(&str, bool)]) -> Result<()> {
        let names = self.feature_names(device)?;
        let blocks = names.len().div_ceil(32);
        // struct ethtool_sfeatures: cmd, size, then blocks of { valid, requested }.
        let mut request = vec![0u32; 2 + 2 * blocks];
        request[0] = ETHTOOL_SFEATURES;
        request[1] = blocks as u32;
        for (name, on) in wanted {
            let bit = names.iter().position(|known| known == name).ok_or_else(|| {
                Error::new("ETHTOOL_SFEATURES", format!("{device} feature {name}"), Errno::EINVAL)
            })?;
            let at = 2 + 2 * (bit / 32);
            let mask = 1u32 << (bit % 32);
            request[at] |= mask;
            if *on {
                request[at + 1] |= mask;
            }
        }
        self.call("ETHTOOL_SFEATURES", device, &mut request)
    }

    /// Returns the name of the driver of a device (`virtio_net`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it has none, `ENODEV`.
    pub fn driver(&self, device: &str) -> Result<String> {
        // struct ethtool_drvinfo: cmd, five strings of 32 bytes, 12 bytes reserved,
        // five counts.
        let mut request = [0u32; 1 + 5 * 8 + 3 + 5];
        request[0] = ETHTOOL_GDRVINFO;
        self.call("ETHTOOL_GDRVINFO", device, &mut request)?;
        let bytes: Vec<u8> = request[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Returns the permanent address of a device, such as `02:00:00:00:00:01`; `None` if it has
    /// none (`struct ethtool_perm_addr`).
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn permanent_address(&self, device: &str) -> Result<Option<String>> {
        /// `MAX_ADDR_LEN`.
        const MOST: usize = 32;
        let mut request = [0_u32; 2 + MOST / 4];
        request[0] = ETHTOOL_GPERMADDR;
        request[1] = MOST as u32;
        self.call("ETHTOOL_GPERMADDR", device, &mut request)?;
        let length = MOST.min(request[1] as usize);
        let bytes: Vec<u8> = request[2..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let address = &bytes[..length];
        let text: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(address.iter().any(|byte| *byte != 0).then(|| text.join(":")))
    }

    /// Returns the rings of a device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has none, `ENODEV`.
    pub fn rings(&self, device: &str) -> Result<Rings> {
        let request = self.nine("ETHTOOL_GRINGPARAM", ETHTOOL_GRINGPARAM, device)?;
        Ok(Rings {
            rx: Amount { now: request[5], most: request[1] },
            tx: Amount { now: request[8], most: request[4] },
        })
    }

    /// Sets the sizes of both rings.
    ///
    /// # Errors
    /// `EINVAL` above the maximum, `EOPNOTSUPP`, `EPERM`, `ENODEV`.
    pub fn set_rings(&self, device: &str, rx: u32, tx: u32) -> Result<()> {
        // The rings for small and jumbo frames keep their sizes.
        let mut request = self.nine("ETHTOOL_GRINGPARAM", ETHTOOL_GRINGPARAM, device)?;
        (request[0], request[5], request[8]) = (ETHTOOL_SRINGPARAM, rx, tx);
        self.call("ETHTOOL_SRINGPARAM", device, &mut request)
    }

    /// Returns the queues of a device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver does not report them, `ENODEV`.
    pub fn channels(&self, device: &str) -> Result<Channels> {
        let request = self.nine("ETHTOOL_GCHANNELS", ETHTOOL_GCHANNELS, device)?;
        Ok(Channels {
            rx: Amount { now: request[5], most: request[1] },
            tx: Amount { now: request[6], most: request[2] },
            combined: Amount { now: request[8], most: request[4] },
        })
    }

    /// Sets the number of queues in use.
    ///
    /// # Errors
    /// `EINVAL` above the maximum, `EOPNOTSUPP`, `EPERM`, `ENODEV`.
    pub fn set_channels(&self, device: &str, rx: u32, tx: u32, combined: u32) -> Result<()> {
        let mut request = self.nine("ETHTOOL_GCHANNELS", ETHTOOL_GCHANNELS, device)?;
        request[0] = ETHTOOL_SCHANNELS;
        (request[5], request[6], request[8]) = (rx, tx, combined);
        self.call("ETHTOOL_SCHANNELS", device, &mut request)
    }

    /// Returns the header fields by which receive queues are selected for UDP over IPv4, as `RXH_…`
    /// bits ([`HASH_PORTS`] for the ports).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver does not report them, `ENODEV`.
    pub fn udp4_hash_fields(&self, device: &str) -> Result<u64> {
        // struct ethtool_rxnfc up to `data`, in its first version: cmd, flow_type, data (u64).
        let mut request = [ETHTOOL_GRXFH, UDP_V4_FLOW, 0, 0];
        self.call("ETHTOOL_GRXFH", device, &mut request)?;
        let data: Vec<u8> = request[2..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(data.try_into().map_or(0, u64::from_ne_bytes))
    }

    /// Returns an interrupt moderation parameter of a device ([`COALESCE`]).
    ///
    /// # Errors
    /// `EINVAL` for an unknown parameter, `EOPNOTSUPP` if the device has none, `ENODEV`.
    pub fn coalesce(&self, device: &str, parameter: &str) -> Result<u32> {
        let at = coalesce_word("ETHTOOL_GCOALESCE", device, parameter)?;
        Ok(self.all_coalesce(device)?[at])
    }

    /// Sets an interrupt moderation parameter and keeps the others.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver does not support the parameter, `EINVAL`, `EPERM`, `ENODEV`.
    pub fn set_coalesce(&self, device: &str, parameter: &str, value: u32) -> Result<()> {
        let at = coalesce_word("ETHTOOL_SCOALESCE", device, parameter)?;
        let mut request = self.all_coalesce(device)?;
        (request[0], request[at]) = (ETHTOOL_SCOALESCE, value);
        self.call("ETHTOOL_SCOALESCE", device, &mut request)
    }

    /// `struct ethtool_coalesce`: cmd, then the parameters.
    fn all_coalesce(&self, device: &str) -> Result<[u32; 1 + COALESCE.len()]> {
        let mut request = [0; 1 + COALESCE.len()];
        request[0] = ETHTOOL_GCOALESCE;
        self.call("ETHTOOL_GCOALESCE", device, &mut request)?;
        Ok(request)
    }

    /// `struct ethtool_ringparam` and `struct ethtool_channels`: cmd, four maximum values, four
    /// current values.
    fn nine(&self, operation: &'static str, command: u32, device: &str) -> Result<[u32; 9]> {
        let mut request = [command, 0, 0, 0, 0, 0, 0, 0, 0];
        self.call(operation, device, &mut request)?;
        Ok(request)
    }

    fn feature_names(&self, device: &str) -> Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, mask (u64), then one count.
        let mut info = vec![ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        self.call("ETHTOOL_GSSET_INFO", device, &mut info)?;
        let count = info[4] as usize;
        // The kernel's answer sizes a buffer of this process.
        if count > MAX_FEATURES {
            let object = format!("{device}: {count} features, expected at most {MAX_FEATURES}");
            return Err(Error::new("ETHTOOL_GSSET_INFO", object, Errno::EOVERFLOW));
        }
        // struct ethtool_gstrings: cmd, string_set, len, then 32 bytes for each string. There is
        // room for more strings than were counted, because kernels before 6.19 write the current
        // number of strings.
        let mut strings = vec![0u32; 3 + MAX_FEATURES * ETH_GSTRING_LEN / 4];
        strings[0] = ETHTOOL_GSTRINGS;
        strings[1] = ETH_SS_FEATURES;
        strings[2] = count as u32;
        self.call("ETHTOOL_GSTRINGS", device, &mut strings)?;
        names(device, count, &strings)
    }

    fn call(&self, operation: &'static str, device: &str, request: &mut [u32]) -> Result<()> {
        let mut ifreq = Ifreq {
            name: [0; libc::IFNAMSIZ],
            data: request.as_mut_ptr().cast(),
            _rest_of_union: [0; 16],
        };
        // The kernel would truncate the name and answer for another device.
        if device.len() >= libc::IFNAMSIZ {
            return Err(Error::new(operation, device, Errno::ENAMETOOLONG));
        }
        ifreq.name[..device.len()].copy_from_slice(device.as_bytes());
        // SAFETY: `ifreq` is the kernel's 40-byte struct ifreq (asserted above). `data` points to
        // `request`; every caller sizes it by the count in the request's own length field, which
        // limits what the kernel writes.
        let answer = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &mut ifreq) };
        if answer < 0 { Err(Error::last(operation, device)) } else { Ok(()) }
    }
}

/// Returns the names in a `struct ethtool_gstrings` that should hold `count` names.
fn names(device: &str, count: usize, strings: &[u32]) -> Result<Vec<String>> {
    let got = strings[2] as usize;
    if got != count {
        // The number of features has changed, so the names would belong to other features.
        let object = format!("{device}: {got} strings, expected {count}");
        return Err(Error::new("ETHTOOL_GSTRINGS", object, Errno::EOVERFLOW));
    }
    let bytes: Vec<u8> = strings[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let all = bytes.chunks_exact(ETH_GSTRING_LEN).take(count);
    Ok(all
        .map(|raw| {
            let end = raw.iter().position(|byte| *byte == 0).unwrap_or(raw.len());
            String::from_utf8_lossy(&raw[..end]).into_owned()
        })
        .collect())
}

/// Returns the index of a parameter in `struct ethtool_coalesce`.
fn coalesce_word(operation: &'static str, device: &str, parameter: &str) -> Result<usize> {
    let at = COALESCE.iter().position(|known| *known == parameter);
    at.map(|at| at + 1).ok_or_else(|| {
        Error::new(operation, format!("{device} parameter {parameter}"), Errno::EINVAL)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_names_as_were_counted_or_none() {
        let mut strings = vec![0; 3 + 4 * ETH_GSTRING_LEN / 4];
        for (at, word) in strings[3..].chunks_exact_mut(ETH_GSTRING_LEN / 4).enumerate() {
            word[0] = u32::from_ne_bytes([b'a' + at as u8, 0, 0, 0]);
        }
        strings[2] = 2;
        assert_eq!(names("nic0", 2, &strings).unwrap(), ["a", "b"]);
        for got in [1, 3] {
            strings[2] = got;
            let error = names("nic0", 2, &strings).unwrap_err();
            assert_eq!(error.errno, Errno::EOVERFLOW);
            assert!(error.to_string().contains(&format!("{got} strings, expected 2")), "{error}");
        }
    }

    #[test]
    fn loopback_has_features_and_a_missing_device_has_none() {
        let ethtool = Ethtool::open().unwrap();
        let features = ethtool.features("lo").unwrap();
        assert!(features.contains_key("tx-udp_tnl-segmentation"), "{features:?}");
        assert!(features["rx-gro"].active);
        assert!(ethtool.merges("lo").unwrap());
        assert_eq!(ethtool.merges("no-such-dev").unwrap_err().errno, Errno::ENODEV);
        let error = ethtool.features("no-such-dev").unwrap_err();
        assert_eq!(error.errno, Errno::ENODEV);
        let error = ethtool.set_features("lo", &[("no-such-feature", true)]).unwrap_err();
        assert!(error.to_string().contains("no-such-feature"), "{error}");
    }
}
