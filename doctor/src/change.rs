//! One setting of a host, and what it is to be changed to: as a command for
//! people, and as a value that can be kept in a journal.

use serde::{Deserialize, Serialize};
use sys::netns::NetNs;

use crate::command::{inside, quote};
use crate::host::Namespace;
use crate::view::Spot;

/// A change of one setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Where; `None`: the machine as a whole.
    pub place: Option<Place>,
    /// What.
    pub setting: Setting,
    /// The value that was read.
    pub from: String,
    /// The value to be.
    pub to: String,
}

/// A namespace, so that it is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Inode number; another namespace may get it after this one is gone.
    pub inode: u64,
    /// A path that opens it; `None`: the caller's own.
    pub path: Option<String>,
    /// What it is called.
    pub label: String,
}

impl Place {
    /// The caller's own.
    ///
    /// # Errors
    /// Where `/proc` is not mounted.
    pub fn here() -> Result<Place, sys::Error> {
        let inode = NetNs::current()?.inode();
        Ok(Place { inode, path: None, label: "here".to_owned() })
    }
}

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Setting {
    /// By its path below `/proc/sys`.
    Sysctl {
        /// As `net/ipv4/ip_forward`.
        path: String,
    },
    /// A device's feature: `on` or `off`.
    Feature {
        /// Device.
        device: Device,
        /// As the kernel names it.
        feature: String,
    },
    /// An attribute of a link.
    Link {
        /// Device.
        device: Device,
        /// Which.
        attribute: Attribute,
    },
    /// Descriptors of a device's receive ring.
    ReceiveRing {
        /// Device.
        device: Device,
    },
    /// Descriptors of a device's transmit ring.
    TransmitRing {
        /// Device.
        device: Device,
    },
    /// A device's queues in use.
    Channels {
        /// Device.
        device: Device,
        /// Which of them.
        which: Queues,
    },
    /// A parameter of a device's interrupt moderation.
    Coalesce {
        /// Device.
        device: Device,
        /// As `ethtool -C` names it.
        parameter: String,
    },
    /// A file below `/sys`.
    Sysfs {
        /// The device that it is of, if it is below `class/net`.
        device: Option<Device>,
        /// As `class/net/eth0/gro_flush_timeout`.
        path: String,
    },
    /// Whatever a command for a shell does: `to` is that command, `from` the one that
    /// takes it back. What it changes cannot be read.
    Command,
    /// CPUs that a receive queue's packets are spread over, as a hexadecimal mask.
    Rps {
        /// Device.
        device: Device,
        /// Queue.
        queue: u32,
    },
}

/// A device, so that it is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name.
    pub name: String,
    /// Index; a device made anew under the same name has another.
    pub index: u32,
}

/// An attribute of a link, named as `ip link set` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// Layer-3 MTU, bytes.
    Mtu,
    /// Packets of the transmit queue.
    Txqueuelen,
    /// Largest super-packet, bytes.
    GsoMaxSize,
    /// Most segments of a super-packet.
    GsoMaxSegs,
    /// `up` or `down`.
    State,
}

/// Which queues of a device, named as `ethtool -L` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queues {
    /// Receive queues of their own.
    Rx,
    /// Transmit queues of their own.
    Tx,
    /// Queues for both ways.
    Combined,
}

impl Queues {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Queues::Rx => "rx",
            Queues::Tx => "tx",
            Queues::Combined => "combined",
        }
    }
}

impl Attribute {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Attribute::Mtu => "mtu",
            Attribute::Txqueuelen => "txqueuelen",
            Attribute::GsoMaxSize => "gso_max_size",
            Attribute::GsoMaxSegs => "gso_max_segs",
            Attribute::State => "",
        }
    }
}

impl Change {
    /// Of a device's feature.
    pub fn feature(spot: Spot<'_>, feature: &str, on: bool) -> Change {
        let word = |on| if on { "on" } else { "off" }.to_owned();
        let setting = Setting::Feature { device: device(spot), feature: feature.to_owned() };
        of(spot.namespace, setting, word(!on), word(on))
    }

    /// Of a link's attribute.
    pub fn link(spot: Spot<'_>, attribute: Attribute, from: u32, to: u32) -> Change {
        let setting = Setting::Link { device: device(spot), attribute };
        of(spot.namespace, setting, from.to_string(), to.to_string())
    }

    /// Of a link's MTU.
    pub fn mtu(spot: Spot<'_>, to: u32) -> Change {
        Change::link(spot, Attribute::Mtu, spot.interface.mtu, to)
    }

    /// Sets a link up.
    pub fn up(spot: Spot<'_>) -> Change {
        let setting = Setting::Link { device: device(spot), attribute: Attribute::State };
        of(spot.namespace, setting, "down".to_owned(), "up".to_owned())
    }

    /// Of a device's receive ring.
    pub fn receive_ring(spot: Spot<'_>, from: u32, to: u32) -> Change {
        let setting = Setting::ReceiveRing { device: device(spot) };
        of(spot.namespace, setting, from.to_string(), to.to_string())
    }

    /// Of the CPUs of a device's first receive queue.
    pub fn rps(spot: Spot<'_>, from: &str, to: &str) -> Change {
        let setting = Setting::Rps { device: device(spot), queue: 0 };
        of(spot.namespace, setting, from.to_owned(), to.to_owned())
    }

    /// Of a namespace's sysctl.
    pub fn sysctl(namespace: &Namespace, path: &str, from: &str, to: &str) -> Change {
        let setting = Setting::Sysctl { path: path.to_owned() };
        of(namespace, setting, from.to_owned(), to.to_owned())
    }

    /// Of a sysctl of the machine.
    pub fn machine(path: &str, from: impl ToString, to: impl ToString) -> Change {
        Change {
            place: None,
            setting: Setting::Sysctl { path: path.to_owned() },
            from: from.to_string(),
            to: to.to_string(),
        }
    }

    /// Any command, and the one that takes it back, in the caller's namespace.
    ///
    /// # Errors
    /// Where the namespace cannot be told.
    pub fn command_with_inverse(command: &str, inverse: &str) -> Result<Change, sys::Error> {
        let (from, to) = (inverse.to_owned(), command.to_owned());
        Ok(Change { place: Some(Place::here()?), setting: Setting::Command, from, to })
    }

    /// The command that makes it.
    pub fn command(&self) -> String {
        self.command_to(&self.to)
    }

    /// The command that takes it back.
    pub fn undo(&self) -> String {
        self.command_to(&self.from)
    }

    fn command_to(&self, value: &str) -> String {
        let value_word = quote(value);
        let command = match &self.setting {
            Setting::Sysctl { path } => format!("sysctl -w {}={value_word}", quote(path)),
            Setting::Feature { device, feature } => {
                format!("ethtool -K {} {} {value_word}", quote(&device.name), quote(feature))
            }
            Setting::Link { device, attribute: Attribute::State } => {
                format!("ip link set dev {} {value_word}", quote(&device.name))
            }
            Setting::Link { device, attribute } => {
                let (name, word) = (quote(&device.name), attribute.word());
                format!("ip link set dev {name} {word} {value_word}")
            }
            Setting::ReceiveRing { device } => {
                format!("ethtool -G {} rx {value_word}", quote(&device.name))
            }
            Setting::TransmitRing { device } => {
                format!("ethtool -G {} tx {value_word}", quote(&device.name))
            }
            Setting::Channels { device, which } => {
                format!("ethtool -L {} {} {value_word}", quote(&device.name), which.word())
            }
            Setting::Coalesce { device, parameter } => {
                format!("ethtool -C {} {parameter} {value_word}", quote(&device.name))
            }
            Setting::Rps { device, queue } => self.write_file(
                &format!("class/net/{}/queues/rx-{queue}/rps_cpus", device.name),
                value,
            ),
            Setting::Sysfs { path, .. } => self.write_file(path, value),
            Setting::Command => value.to_owned(),
        };
        match (&self.place, &self.setting) {
            // For a shell, which the namespace's program is not.
            (Some(Place { path: Some(path), .. }), Setting::Command) => {
                inside(Some(path), &format!("sh -c {}", quote(&command)))
            }
            (Some(place), _) => inside(place.path.as_deref(), &command),
            (None, _) => command,
        }
    }

    /// Writes a file below `/sys`, which shows the devices of whoever mounted it.
    fn write_file(&self, path: &str, value: &str) -> String {
        let write = format!("echo {} > {}", quote(value), quote(&format!("/sys/{path}")));
        match self.place.as_ref().and_then(|place| place.path.as_ref()) {
            Some(_) => {
                let mounted = format!("mount -t sysfs sysfs /sys && {write}");
                format!("unshare --mount sh -c {}", quote(&mounted))
            }
            None => format!("sh -c {}", quote(&write)),
        }
    }

    /// What it changes, in words.
    pub fn object(&self) -> String {
        let place = self.place.as_ref().map_or("machine", |place| place.label.as_str());
        match &self.setting {
            Setting::Sysctl { path } => format!("{place}: {path}"),
            Setting::Feature { device, feature } => {
                format!("{place}: {feature} of {}", device.name)
            }
            Setting::Link { device, attribute: Attribute::State } => {
                format!("{place}: state of {}", device.name)
            }
            Setting::Link { device, attribute } => {
                format!("{place}: {} of {}", attribute.word(), device.name)
            }
            Setting::ReceiveRing { device } => format!("{place}: receive ring of {}", device.name),
            Setting::TransmitRing { device } => {
                format!("{place}: transmit ring of {}", device.name)
            }
            Setting::Channels { device, which } => {
                format!("{place}: {} queues of {}", which.word(), device.name)
            }
            Setting::Coalesce { device, parameter } => {
                format!("{place}: {parameter} of {}", device.name)
            }
            Setting::Sysfs { path, .. } => format!("{place}: /sys/{path}"),
            Setting::Command => format!("{place}: {}", self.to),
            Setting::Rps { device, queue } => {
                format!("{place}: CPUs of receive queue {queue} of {}", device.name)
            }
        }
    }
}

fn device(spot: Spot<'_>) -> Device {
    Device { name: spot.name().to_owned(), index: spot.interface.index }
}

fn of(namespace: &Namespace, setting: Setting, from: String, to: String) -> Change {
    let place = Place {
        inode: namespace.inode,
        path: namespace.path.clone(),
        label: namespace.label.clone(),
    };
    Change { place: Some(place), setting, from, to }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_where_the_setting_is() {
        let place = Place {
            inode: 4026531840,
            path: Some("/run/netns/web 1".to_owned()),
            label: "web 1".to_owned(),
        };
        let device = Device { name: "eth0;x".to_owned(), index: 2 };
        let change = Change {
            place: Some(place),
            setting: Setting::Link { device, attribute: Attribute::Mtu },
            from: "1500".to_owned(),
            to: "1450".to_owned(),
        };
        let run = "nsenter --net='/run/netns/web 1' ip link set dev 'eth0;x' mtu";
        assert_eq!(change.command(), format!("{run} 1450"));
        assert_eq!(change.undo(), format!("{run} 1500"));
        let machine = Change::machine("net/core/netdev_budget", 300, 600);
        assert_eq!(machine.command(), "sysctl -w net/core/netdev_budget=600");
    }
}
