//! One side of `tapbridge`, as the command line names it: a TAP device, or a guest.

use std::path::PathBuf;
use std::str::FromStr;

use datapath::tapbridge::{BridgePort, PortOptions};
use datapath::vhost_user::{self, GuestPort, GuestPortOptions};
use sys::netns::NetNs;
use sys::tap::Offload;

use crate::tap_device::{TapDevice, set_up};

/// A side as asked for: `TAP[:ADDRESS/LENGTH,…]` or `vhost-user:/PATH`.
#[derive(Debug, PartialEq, Eq)]
pub enum BridgeEnd {
    /// A device that this makes.
    Tap(TapDevice),
    /// A socket that this makes, for a guest's QEMU.
    Guest(PathBuf),
}

impl FromStr for BridgeEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<BridgeEnd, String> {
        match text.strip_prefix(vhost_user::PREFIX) {
            Some(path) if path.starts_with('/') => Ok(BridgeEnd::Guest(path.into())),
            Some(path) => Err(format!("socket {path:?}: wanted an absolute path")),
            None => TapDevice::from_str(text).map(BridgeEnd::Tap),
        }
    }
}

impl BridgeEnd {
    /// The device, if it is one.
    pub fn tap(&self) -> Option<&TapDevice> {
        match self {
            BridgeEnd::Tap(tap) => Some(tap),
            BridgeEnd::Guest(_) => None,
        }
    }

    /// As lines for people have it.
    pub fn name(&self) -> String {
        match self {
            BridgeEnd::Tap(tap) => tap.device.clone(),
            BridgeEnd::Guest(path) => format!("guest {}", path.display()),
        }
    }

    /// Queues, at most.
    pub fn queues_max(&self) -> usize {
        match self {
            BridgeEnd::Tap(_) => datapath::tapbridge::QUEUES_MAX,
            BridgeEnd::Guest(_) => vhost_user::QUEUES_MAX,
        }
    }

    /// Makes the device, or the socket.
    ///
    /// # Errors
    /// The kernel's answer; a socket that somebody else has.
    pub fn open(
        &self,
        queues: usize,
        offload: Offload,
        netns: &NetNs,
        mtu: Option<u32>,
    ) -> anyhow::Result<BridgePort> {
        match self {
            BridgeEnd::Tap(tap) => {
                let options = PortOptions { queues, offload, ..PortOptions::named(&tap.device) };
                Ok(set_up(tap, &options, netns, mtu)?.into())
            }
            BridgeEnd::Guest(socket) => {
                let options = GuestPortOptions { socket: socket.clone(), queues, offload };
                Ok(GuestPort::listen(&options)?.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_a_device_or_a_socket() {
        let side = BridgeEnd::from_str("vhost-user:/run/a b:c.sock").unwrap();
        assert_eq!(side, BridgeEnd::Guest("/run/a b:c.sock".into()));
        assert_eq!(side.name(), "guest /run/a b:c.sock");
        let tap = BridgeEnd::from_str("vhost-user").unwrap();
        assert_eq!(tap.tap().unwrap().device, "vhost-user");
        let wrong = BridgeEnd::from_str("vhost-user:a.sock").unwrap_err();
        assert_eq!(wrong, "socket \"a.sock\": wanted an absolute path");
        assert!(BridgeEnd::from_str("vhost-user:").is_err());
    }
}
