//! One side of `tapbridge`: a TAP device or a guest.

use std::path::PathBuf;
use std::str::FromStr;

use datapath::tapbridge::{BridgePort, PortOptions};
use datapath::vhost_user::{self, GuestPort, GuestPortOptions};
use sys::netns::NetNs;
use sys::tap::Offload;

use crate::tap_device::{TapDevice, set_up};

/// A side in command-line form: `TAP[:ADDRESS/LENGTH,…]` or `vhost-user:/PATH`.
#[derive(Debug, PartialEq, Eq)]
pub enum BridgeEnd {
    Tap(TapDevice),
    /// A socket to create, for a guest's QEMU.
    Guest(PathBuf),
}

impl FromStr for BridgeEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<BridgeEnd, String> {
        match text.strip_prefix(vhost_user::PREFIX) {
            Some(path) if path.starts_with('/') => Ok(BridgeEnd::Guest(path.into())),
            Some(path) => Err(format!("socket {path:?}: expected an absolute path")),
            None => TapDevice::from_str(text).map(BridgeEnd::Tap),
        }
    }
}

impl BridgeEnd {
    pub fn tap(&self) -> Option<&TapDevice> {
        match self {
            BridgeEnd::Tap(tap) => Some(tap),
            BridgeEnd::Guest(_) => None,
        }
    }

    pub fn name(&self) -> String {
        match self {
            BridgeEnd::Tap(tap) => tap.device.clone(),
            BridgeEnd::Guest(path) => format!("guest {}", path.display()),
        }
    }

    /// Returns the maximum number of queues.
    pub fn queues_max(&self) -> usize {
        match self {
            BridgeEnd::Tap(_) => datapath::tapbridge::QUEUES_MAX,
            BridgeEnd::Guest(_) => vhost_user::QUEUES_MAX,
        }
    }

    /// Creates the device or the socket.
    ///
    /// # Errors
    /// The kernel's error; a socket in use by another process.
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
        assert_eq!(wrong, "socket \"a.sock\": expected an absolute path");
        assert!(BridgeEnd::from_str("vhost-user:").is_err());
    }
}
