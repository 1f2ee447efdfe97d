//! What verbs that run until they are told to end have in common: signals,
//! namespaces, and the TAP devices they make.

use std::io::Read;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use datapath::tapbridge::{Port, PortOptions};
use netstate::Netlink;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use sys::netns::NetNs;

use crate::exit::usage;

/// Smallest MTU that IPv4 works with (RFC 791), and the largest of a TAP: with
/// its Ethernet header 65,535 bytes (`drivers/net/tun.c`).
pub const MTU: std::ops::RangeInclusive<u32> = 68..=65_521;

/// How long the kernel may take to make an IPv6 address of use: it has one queue for them,
/// behind all changes of the network.
const IN_FORCE: Duration = Duration::from_secs(30);

/// A TAP as asked for: `TAP[:ADDRESS/LENGTH,…]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// Name.
    pub device: String,
    /// Addresses and prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Asked, String> {
        // A device name has no colon, an IPv6 address has many.
        let (device, list) = match text.split_once(':') {
            Some((device, list)) => (device, Some(list)),
            None => (text, None),
        };
        if device.is_empty() || device.len() > 15 || device.contains(['/', '%']) {
            return Err(format!("device name {device:?}: wanted 1 to 15 bytes without / and %"));
        }
        let mut addresses = Vec::new();
        for address in list.into_iter().flat_map(|list| list.split(',')) {
            addresses.push(parse_address(address)?);
        }
        Ok(Asked { device: device.to_owned(), addresses })
    }
}

/// `ADDRESS/LENGTH`.
pub fn parse_address(text: &str) -> Result<(IpAddr, u8), String> {
    let wanted = || format!("address {text:?}: wanted ADDRESS/LENGTH, as 192.168.64.64/24");
    let (ip, length) = text.split_once('/').ok_or_else(wanted)?;
    let ip: IpAddr = ip.parse().map_err(|_| wanted())?;
    let length: u8 = length.parse().map_err(|_| wanted())?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    if length > longest {
        return Err(format!("address {text:?}: wanted a length of at most {longest}"));
    }
    Ok((ip, length))
}

/// Sockets that become readable when a signal came.
pub struct Signals {
    /// SIGINT, SIGTERM.
    pub end: UnixStream,
    /// SIGUSR1.
    pub show: UnixStream,
}

impl Signals {
    /// From here on these signals no longer end the process.
    pub fn new() -> anyhow::Result<Signals> {
        Ok(Signals { end: on_signals(&[SIGINT, SIGTERM])?, show: on_signals(&[SIGUSR1])? })
    }
}

/// A socket that becomes readable when one of these signals came.
pub fn on_signals(signals: &[i32]) -> anyhow::Result<UnixStream> {
    let pair = || {
        let (receiver, sender) = UnixStream::pair()?;
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
        }
        std::io::Result::Ok(receiver)
    };
    pair().context("install signal handlers")
}

/// Waits until one can be read, or its other end is gone; says which.
pub fn wait<const N: usize>(fds: [BorrowedFd<'_>; N]) -> anyhow::Result<[bool; N]> {
    let mut ready = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    loop {
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => return Ok(ready.map(|fd| fd.any().unwrap_or(false))),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
    }
}

/// Takes what a signal has left in its socket: one byte a signal; several at once
/// are answered once.
pub fn take(mut socket: &UnixStream) {
    let _ = socket.read(&mut [0; 64]);
}

/// A namespace by name, process id or path; the caller's without one.
pub fn netns(argument: &str, text: Option<&str>) -> anyhow::Result<NetNs> {
    let Some(text) = text else { return Ok(NetNs::current()?) };
    let path = if text.contains('/') {
        PathBuf::from(text)
    } else if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        PathBuf::from(format!("/proc/{text}/ns/net"))
    } else {
        PathBuf::from("/run/netns").join(text)
    };
    NetNs::open(&path).map_err(|error| usage(argument, error))
}

/// Creates a device, gives it its addresses, sets it up; the addresses are in force then.
pub fn set_up(
    asked: &Asked,
    options: &PortOptions,
    netns: &NetNs,
    mtu: Option<u32>,
) -> anyhow::Result<Port> {
    let port = Port::open(options, netns).map_err(|error| {
        let hint = match error.errno {
            Errno::EPERM | Errno::EACCES => "; TAP devices need CAP_NET_ADMIN (root)",
            Errno::EBUSY => "; a device of that name is there already",
            _ => "",
        };
        anyhow::anyhow!("{error}{hint}")
    })?;
    let netlink = Netlink::open_in(netns)?;
    if let Some(mtu) = mtu {
        netlink.set_mtu(&asked.device, mtu)?;
    }
    for (ip, prefix) in &asked.addresses {
        netlink.add_address(&asked.device, *ip, *prefix)?;
    }
    netlink.set_up(&asked.device)?;
    let link = netlink.link(&asked.device)?.index;
    for (ip, _) in asked.addresses.iter().filter(|(ip, _)| ip.is_ipv6()) {
        testbed::poll(&format!("{}'s address {ip}", asked.device), IN_FORCE, || {
            Ok(netlink.is_own(link, *ip)?.then_some(()).ok_or_else(|| "no local route".into()))
        })?;
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_devices_with_addresses() {
        let side = Asked::from_str("tap0:192.168.64.64/24,fd00::1/64").unwrap();
        assert_eq!(side.device, "tap0");
        assert_eq!(
            side.addresses,
            [("192.168.64.64".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 64)]
        );
        assert_eq!(Asked::from_str("tap1").unwrap().addresses, []);
        for wrong in
            ["", ":10.0.0.1/8", "tap0:", "tap0:10.0.0.1", "tap0:10.0.0.1/33", "tap%d", "a/b"]
        {
            assert!(Asked::from_str(wrong).is_err(), "{wrong}");
        }
    }
}
