//! TAP devices that verbs create.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use datapath::tapbridge::{Port, PortOptions};
use netstate::Netlink;
use nix::errno::Errno;
use sys::netns::NetNs;

/// Valid MTUs: from the minimum of IPv4 (RFC 791) to the maximum of a TAP, which with its Ethernet
/// header is 65,535 bytes (`drivers/net/tun.c`).
pub const MTU: std::ops::RangeInclusive<u32> = 68..=65_521;

/// Time limit for the kernel to make an IPv6 address usable: it processes them in one work queue,
/// behind all other changes of the network.
const IN_FORCE: Duration = Duration::from_secs(30);

/// A TAP in command-line form: `TAP[:ADDRESS/LENGTH,…]`.
#[derive(Debug, PartialEq, Eq)]
pub struct TapDevice {
    /// Name of the device, 1 to 15 bytes.
    pub device: String,
    /// Addresses and prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl FromStr for TapDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<TapDevice, String> {
        // Split at the first colon: a device name has none, an IPv6 address has several.
        let (device, list) = match text.split_once(':') {
            Some((device, list)) => (device, Some(list)),
            None => (text, None),
        };
        // The limits of `dev_valid_name`; `%` would be a template for a number.
        if device.is_empty() || device.len() > 15 || device.contains(['/', '%']) {
            return Err(format!("device name {device:?}: expected 1 to 15 bytes without / and %"));
        }
        let mut addresses = Vec::new();
        for address in list.into_iter().flat_map(|list| list.split(',')) {
            addresses.push(parse_address(address)?);
        }
        Ok(TapDevice { device: device.to_owned(), addresses })
    }
}

/// Parses `ADDRESS/LENGTH`, the length in bits.
pub fn parse_address(text: &str) -> Result<(IpAddr, u8), String> {
    let wanted = || format!("address {text:?}: expected ADDRESS/LENGTH, such as 192.168.64.64/24");
    let (ip, length) = text.split_once('/').ok_or_else(wanted)?;
    let ip: IpAddr = ip.parse().map_err(|_| wanted())?;
    let length: u8 = length.parse().map_err(|_| wanted())?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    if length > longest {
        return Err(format!("address {text:?}: expected a length of at most {longest}"));
    }
    Ok((ip, length))
}

/// Creates a device, adds its addresses, and sets it up. Returns once the addresses are usable.
///
/// # Errors
/// The kernel's error with a hint; an IPv6 address that is not usable in time.
pub fn set_up(
    tap: &TapDevice,
    options: &PortOptions,
    netns: &NetNs,
    mtu: Option<u32>,
) -> anyhow::Result<Port> {
    let port = Port::open(options, netns).map_err(|error| {
        let hint = match error.errno {
            Errno::EPERM | Errno::EACCES => "; TAP devices need CAP_NET_ADMIN (root)",
            Errno::EBUSY => "; a device with this name exists",
            _ => "",
        };
        anyhow::anyhow!("{error}{hint}")
    })?;
    let netlink = Netlink::open_in(netns)?;
    if let Some(mtu) = mtu {
        netlink.set_mtu(&tap.device, mtu)?;
    }
    for (ip, prefix) in &tap.addresses {
        netlink.add_address(&tap.device, *ip, *prefix)?;
    }
    netlink.set_up(&tap.device)?;
    let link = netlink.link(&tap.device)?.index;
    for (ip, _) in tap.addresses.iter().filter(|(ip, _)| ip.is_ipv6()) {
        testbed::poll(&format!("{}'s address {ip}", tap.device), IN_FORCE, || {
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
        let side = TapDevice::from_str("tap0:192.168.64.64/24,fd00::1/64").unwrap();
        assert_eq!(side.device, "tap0");
        assert_eq!(
            side.addresses,
            [("192.168.64.64".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 64)]
        );
        assert_eq!(TapDevice::from_str("tap1").unwrap().addresses, []);
        for wrong in
            ["", ":10.0.0.1/8", "tap0:", "tap0:10.0.0.1", "tap0:10.0.0.1/33", "tap%d", "a/b"]
        {
            assert!(TapDevice::from_str(wrong).is_err(), "{wrong}");
        }
    }
}
