//! Reads back the settings in force at a running guest: from the guest itself, and from QEMU's
//! descriptors on the host.

use std::fmt;

use sys::process::Process;
use testbed::Host;

use crate::Result;
use crate::guest_options::GuestOptions;

/// The guest's device in its host.
pub(crate) const TAP: &str = "tap0";

/// Maximum number of QEMU's descriptors to inspect.
const MOST_DESCRIPTORS: usize = 4096;
/// Maximum size of an `fdinfo` file to read, bytes.
const MOST_INFO: usize = 4096;

/// Settings in force at a running guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// Name of the guest in hops.
    pub guest: String,
    /// Its kernel (`uname -r`).
    pub kernel: String,
    pub cpus: u32,
    /// Queue pairs in use by its NIC.
    pub queues: u32,
    /// Whether its driver and QEMU negotiated `VIRTIO_NET_F_MRG_RXBUF`.
    pub mrg_rxbuf: bool,
    /// Whether they negotiated GSO packets in UDP tunnels, in both directions.
    pub tunnel_gso: bool,
    /// Its TAP device, unless it is behind QEMU's user-space stack or vhost-user.
    pub tap: Option<TapInForce>,
}

/// A guest's TAP device as the host's kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapInForce {
    pub device: String,
    /// Queues attached by QEMU.
    pub queues: u32,
    /// Queue length, packets.
    pub txqueuelen: u32,
    /// Smallest send buffer of its queues, bytes (`TUNGETSNDBUF`).
    pub sndbuf: u32,
    /// Whether QEMU has `/dev/vhost-net` open.
    pub vhost: bool,
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(", "))
    }
}

impl InForce {
    fn words(&self) -> Vec<String> {
        let on = |on| if on { "on" } else { "off" };
        let mut words = vec![
            format!("CPUs {}", self.cpus),
            format!("queues {}", self.queues),
            format!("mrg_rxbuf {}", on(self.mrg_rxbuf)),
            format!("tunnel GSO {}", on(self.tunnel_gso)),
        ];
        if let Some(TapInForce { device, queues, txqueuelen, sndbuf, vhost }) = &self.tap {
            words.push(format!("{device} queues {queues}"));
            words.push(format!("{device} txqueuelen {txqueuelen}"));
            words.push(format!("{device} sndbuf {sndbuf}"));
            words.push(format!("vhost {}", on(*vhost)));
        }
        words
    }

    /// Describes the settings that differ from another guest's; `None` if all are equal.
    pub fn beside(&self, other: &InForce) -> Option<String> {
        let others = other.words();
        let differ: Vec<String> =
            self.words().into_iter().filter(|word| !others.contains(word)).collect();
        (!differ.is_empty()).then(|| differ.join(", "))
    }

    /// Describes the first requested setting that is not in force.
    pub(crate) fn differs(&self, asked: &GuestOptions) -> Option<String> {
        fn number(name: &str, asked: Option<u32>, got: Option<u32>) -> Option<String> {
            let asked = asked.filter(|asked| Some(*asked) != got)?;
            let got = got.map_or("nothing".to_owned(), |got| got.to_string());
            Some(format!("{name}={asked} was requested, {got} is in force"))
        }
        fn switch(name: &str, asked: Option<bool>, got: bool) -> Option<String> {
            let word = |on| if on { "on" } else { "off" };
            let asked = asked.filter(|asked| *asked != got)?;
            Some(format!("{name}={} was requested, {} is in force", word(asked), word(got)))
        }
        let tap = self.tap.as_ref();
        let of_tap = |asked: Option<u32>| asked.filter(|_| tap.is_some());
        number("vm:cpus", asked.cpus.or(asked.queues), Some(self.cpus))
            .or_else(|| number("vm:queues", asked.queues, Some(self.queues)))
            .or_else(|| number("vm:queues", of_tap(asked.queues), tap.map(|tap| tap.queues)))
            .or_else(|| switch("vm:vhost", asked.vhost, tap.is_some_and(|tap| tap.vhost)))
            .or_else(|| switch("vm:mrg_rxbuf", asked.mrg_rxbuf, self.mrg_rxbuf))
            .or_else(|| switch("vm:tunnel-gso", asked.tunnel_gso, self.tunnel_gso))
            .or_else(|| number("tap:txqueuelen", asked.txqueuelen, tap.map(|tap| tap.txqueuelen)))
            .or_else(|| number("tap:sndbuf", asked.sndbuf, tap.map(|tap| tap.sndbuf)))
            .map(|problem| format!("{problem} ({self})"))
    }
}

/// Report of a guest that is up, sent after the word `ready`: `key=value`, separated by blanks.
/// It is not trusted: a malformed number counts as zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub kernel: String,
    pub cpus: u32,
    pub queues: u32,
    /// Negotiated features of virtio-net, one bit each.
    pub features: u128,
}

// Feature bits of virtio-net (include/uapi/linux/virtio_net.h).
const MRG_RXBUF: u32 = 15;
const GUEST_TUNNEL_GSO: u32 = 65;
const HOST_TUNNEL_GSO: u32 = 67;

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Said { kernel, cpus, queues, features } = self;
        write!(f, "{kernel} cpus={cpus} queues={queues} features={features:x}")
    }
}

impl Said {
    /// Parses the report. Missing values are zero.
    pub fn parse(text: &str) -> Said {
        let mut words = text.split(' ');
        let kernel = words.next().unwrap_or_default().to_owned();
        let mut said = Said { kernel, cpus: 0, queues: 0, features: 0 };
        for word in words {
            match word.split_once('=') {
                Some(("cpus", number)) => said.cpus = number.parse().unwrap_or_default(),
                Some(("queues", number)) => said.queues = number.parse().unwrap_or_default(),
                Some(("features", bits)) => {
                    said.features = u128::from_str_radix(bits, 16).unwrap_or_default();
                }
                // Ignore unknown words: the report is not trusted.
                _ => {}
            }
        }
        said
    }

    fn has(&self, bit: u32) -> bool {
        self.features >> bit & 1 == 1
    }

    /// Combines the guest's report with the host's view of its TAP device.
    pub fn in_force(self, guest: &str, tap: Option<TapInForce>) -> InForce {
        InForce {
            guest: guest.to_owned(),
            cpus: self.cpus,
            queues: self.queues,
            mrg_rxbuf: self.has(MRG_RXBUF),
            // GSO packets stay whole in both directions only with both features.
            tunnel_gso: self.has(HOST_TUNNEL_GSO) && self.has(GUEST_TUNNEL_GSO),
            kernel: self.kernel,
            tap,
        }
    }
}

/// Reads the TAP device of the guest that QEMU process `qemu` runs.
///
/// # Errors
/// If QEMU has ended, or the kernel refuses the information.
pub(crate) fn tap(host: &Host, qemu: u32) -> Result<TapInForce> {
    let process = Process::open(qemu)?;
    let (numbers, _) = process.descriptors(MOST_DESCRIPTORS)?;
    let mut tap = TapInForce {
        device: TAP.to_owned(),
        queues: 0,
        txqueuelen: host.netlink().link(TAP)?.tx_queue_len,
        sndbuf: u32::MAX,
        vhost: false,
    };
    for number in numbers {
        let target = process.descriptor(&number)?;
        match target.to_str() {
            // QEMU opens it only if it uses vhost.
            Some("/dev/vhost-net") => tap.vhost = true,
            Some("/dev/net/tun") => {
                // The guest has detached a queue that it does not use: its fdinfo names no device
                // (tun_chr_show_fdinfo(), drivers/net/tun.c).
                let info = process.read(&format!("fdinfo/{number}"), MOST_INFO)?.text;
                let device = info.lines().find_map(|line| line.strip_prefix("iff:\t"));
                if device.is_some_and(|device| device.trim() == TAP) {
                    tap.queues += 1;
                    tap.sndbuf = tap.sndbuf.min(sys::tap_holder::send_buffer(qemu, &number)?);
                }
            }
            // A guest without a TAP device has no options of one.
            _ => {}
        }
    }
    Ok(tap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_force(text: &str) -> InForce {
        let tap = TapInForce {
            device: TAP.to_owned(),
            queues: 2,
            txqueuelen: 1000,
            sndbuf: i32::MAX as u32,
            vhost: false,
        };
        Said::parse(text).in_force("tenant-a", Some(tap))
    }

    #[test]
    fn a_guest_s_words_are_read_back_and_wild_ones_are_nothing() {
        let said =
            Said { kernel: "6.1.0".to_owned(), cpus: 2, queues: 2, features: 1 << 15 | 1 << 67 };
        assert_eq!(Said::parse(&said.to_string()), said);
        let wild = Said::parse("6.1 cpus=-1 queues=99999999999 features=zz more a=b =");
        assert_eq!((wild.cpus, wild.queues, wild.features), (0, 0, 0));
        let guest = in_force(&said.to_string());
        assert_eq!(guest.beside(&guest), None);
        let other = in_force("6.1.0 cpus=1 queues=2 features=0");
        assert_eq!(guest.beside(&other).as_deref(), Some("CPUs 2, mrg_rxbuf on"));
        // Only one of the two directions was negotiated.
        assert!(guest.mrg_rxbuf && !guest.tunnel_gso);
    }

    #[test]
    fn options_not_in_force_are_named() {
        let found = GuestOptions::AS_FOUND;
        let guest = in_force("6.1.0 cpus=2 queues=1 features=8000");
        for (asked, named) in [
            (GuestOptions { queues: Some(2), ..found }, "vm:queues=2 was requested, 1 is"),
            (GuestOptions { cpus: Some(3), ..found }, "vm:cpus=3 was requested, 2 is"),
            (GuestOptions { vhost: Some(true), ..found }, "vm:vhost=on was requested, off is"),
            (GuestOptions { mrg_rxbuf: Some(false), ..found }, "vm:mrg_rxbuf=off was requested"),
            (GuestOptions { tunnel_gso: Some(true), ..found }, "vm:tunnel-gso=on was requested"),
            (GuestOptions { txqueuelen: Some(50), ..found }, "tap:txqueuelen=50 was requested"),
            (GuestOptions { sndbuf: Some(4096), ..found }, "tap:sndbuf=4096 was requested"),
        ] {
            let problem = guest.differs(&asked).unwrap();
            assert!(problem.contains(named) && problem.contains("txqueuelen 1000"), "{problem}");
        }
        let asked = GuestOptions {
            cpus: Some(2),
            vhost: Some(false),
            mrg_rxbuf: Some(true),
            txqueuelen: Some(1000),
            ..found
        };
        assert_eq!(guest.differs(&asked), None);
    }
}
