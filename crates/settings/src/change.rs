//! A change of one setting: as a command for people, and as a value for the journal.

use netstate::interface::Interface;
use netstate::namespace::first;
use serde::{Deserialize, Serialize};
use sys::netns::NetNs;

use crate::command::{inside, quote};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Namespace; `None` for a setting of the whole machine.
    pub place: Option<Namespace>,
    /// Setting, with its device or path.
    pub setting: Setting,
    pub from: String,
    pub to: String,
}

/// A namespace, with the data that identifies it later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Inode number. The kernel reuses it after the namespace is gone.
    pub inode: u64,
    /// Number that is unique in one boot (`SO_NETNS_COOKIE`). `None` before Linux 5.14, and in
    /// entries of earlier versions.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// Whether it is the machine's first namespace, which exists again after a reboot.
    #[serde(default)]
    pub first: bool,
    /// Path that opens it; `None` for the caller's own.
    pub path: Option<String>,
    pub label: String,
}

impl Namespace {
    /// Describes an open namespace; `path` opens it again.
    pub fn of(netns: &NetNs, path: Option<String>, label: &str) -> Result<Namespace, sys::Error> {
        let (cookie, first) = (netns.cookie()?, is_first(netns));
        Ok(Namespace { inode: netns.inode(), cookie, first, path, label: label.to_owned() })
    }

    /// Describes the caller's own namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn here() -> Result<Namespace, sys::Error> {
        Namespace::of(&NetNs::current()?, None, "here")
    }
}

/// A device that was read, and its namespace.
#[derive(Debug, Clone)]
pub struct Target<'a> {
    /// Network namespace in which the setting is read and written.
    pub namespace: Namespace,
    pub interface: &'a Interface,
}

impl Target<'_> {
    fn change(
        self,
        from: impl ToString,
        to: impl ToString,
        setting: impl FnOnce(Device) -> Setting,
    ) -> Change {
        Change {
            place: Some(self.namespace),
            setting: setting(Device::of(self.interface)),
            from: from.to_string(),
            to: to.to_string(),
        }
    }
}

/// A property of a host that can be read, written and restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Setting {
    /// A sysctl, by its path below `/proc/sys`.
    Sysctl {
        /// For example `net/ipv4/ip_forward`.
        path: String,
        /// Device in the path, as in `net/ipv4/conf/eth0/rp_filter`. Set when the change is made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<Device>,
    },
    /// A device's feature: `on` or `off`.
    Feature {
        device: Device,
        /// Kernel name of the feature.
        feature: String,
    },
    Link {
        device: Device,
        attribute: Attribute,
    },
    /// Descriptors of a device's receive ring.
    ReceiveRing {
        device: Device,
    },
    /// Descriptors of a device's transmit ring.
    TransmitRing {
        device: Device,
    },
    /// A device's queues in use.
    Channels {
        device: Device,
        /// Receive, transmit or combined queues.
        which: Queues,
    },
    /// A parameter of a device's interrupt moderation.
    Coalesce {
        /// Device whose interrupts are moderated.
        device: Device,
        /// Name as in `ethtool -C`.
        parameter: String,
    },
    /// A file below `/sys`.
    Sysfs {
        /// Device, if the path is below `class/net`.
        device: Option<Device>,
        /// For example `class/net/eth0/gro_flush_timeout`.
        path: String,
    },
    /// The effect of a shell command: `to` is the command, `from` its inverse. It has no value that
    /// could be read.
    Command,
    /// CPUs over which a receive queue spreads its packets, as a hexadecimal mask.
    Rps {
        device: Device,
        /// Receive queue, counted from 0 (`queues/rx-N`).
        queue: u32,
    },
}

impl Setting {
    pub fn device(&self) -> Option<&Device> {
        match self {
            Setting::Sysctl { device, .. } | Setting::Sysfs { device, .. } => device.as_ref(),
            Setting::Feature { device, .. }
            | Setting::Link { device, .. }
            | Setting::ReceiveRing { device }
            | Setting::TransmitRing { device }
            | Setting::Channels { device, .. }
            | Setting::Coalesce { device, .. }
            | Setting::Rps { device, .. } => Some(device),
            Setting::Command => None,
        }
    }

    pub(crate) fn set_device(&mut self, known: Device) {
        match self {
            Setting::Sysctl { device, .. } | Setting::Sysfs { device, .. } => *device = Some(known),
            Setting::Feature { device, .. }
            | Setting::Link { device, .. }
            | Setting::ReceiveRing { device }
            | Setting::TransmitRing { device }
            | Setting::Channels { device, .. }
            | Setting::Coalesce { device, .. }
            | Setting::Rps { device, .. } => *device = known,
            Setting::Command => {}
        }
    }
}

/// A device, with the data that identifies it later.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name when the change was made. The device may have been renamed since.
    pub name: String,
    /// Index. A new device of the same name has another index, unless its creator requested this
    /// one.
    pub index: u32,
    /// Kind (`veth`, `vxlan` …), if the driver has one.
    #[serde(default)]
    pub kind: Option<String>,
    /// Link-layer address when the change was made, as text.
    #[serde(default)]
    pub address: Option<String>,
    /// Permanent address, if the driver has one.
    #[serde(default)]
    pub permanent: Option<String>,
}

impl Device {
    pub fn of(link: &Interface) -> Device {
        Device {
            name: link.name.clone(),
            index: link.index,
            kind: link.kind.clone(),
            address: link.mac.map(|mac| mac.to_string()),
            permanent: None,
        }
    }
}

/// An attribute of a link, named as `ip link set` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// Layer-3 MTU, bytes.
    Mtu,
    /// Packets of the transmit queue.
    Txqueuelen,
    /// Largest GSO packet, bytes.
    GsoMaxSize,
    /// Most segments of a GSO packet.
    GsoMaxSegs,
    /// `up` or `down`.
    State,
}

/// Which queues of a device, named as `ethtool -L` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queues {
    /// Separate receive queues.
    Rx,
    /// Separate transmit queues.
    Tx,
    /// Queues for both directions.
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
            // ip-link(8) takes `up` and `down` without an attribute name.
            Attribute::State => "",
        }
    }
}

impl Change {
    /// Changes a device's feature.
    pub fn feature<'a>(at: impl Into<Target<'a>>, feature: &str, on: bool) -> Change {
        let word = |on| if on { "on" } else { "off" };
        at.into().change(word(!on), word(on), |device| Setting::Feature {
            device,
            feature: feature.to_owned(),
        })
    }

    /// Changes a link's attribute, in the unit of [`Attribute`].
    pub fn link<'a>(at: impl Into<Target<'a>>, attribute: Attribute, from: u32, to: u32) -> Change {
        at.into().change(from, to, |device| Setting::Link { device, attribute })
    }

    /// Changes a link's layer-3 MTU, bytes.
    pub fn mtu<'a>(at: impl Into<Target<'a>>, to: u32) -> Change {
        let at = at.into();
        let from = at.interface.mtu;
        Change::link(at, Attribute::Mtu, from, to)
    }

    pub fn up<'a>(at: impl Into<Target<'a>>) -> Change {
        let attribute = Attribute::State;
        at.into().change("down", "up", |device| Setting::Link { device, attribute })
    }

    /// Changes a device's receive ring, in descriptors.
    pub fn receive_ring<'a>(at: impl Into<Target<'a>>, from: u32, to: u32) -> Change {
        at.into().change(from, to, |device| Setting::ReceiveRing { device })
    }

    /// Changes the CPUs of a device's first receive queue, as hexadecimal masks.
    pub fn rps<'a>(at: impl Into<Target<'a>>, from: &str, to: &str) -> Change {
        at.into().change(from, to, |device| Setting::Rps { device, queue: 0 })
    }

    /// Changes a namespace's sysctl, by its path below `/proc/sys`.
    pub fn sysctl(place: impl Into<Namespace>, path: &str, from: &str, to: &str) -> Change {
        let setting = Setting::Sysctl { path: path.to_owned(), device: None };
        let (from, to) = (from.to_owned(), to.to_owned());
        Change { place: Some(place.into()), setting, from, to }
    }

    pub fn machine(path: &str, from: impl ToString, to: impl ToString) -> Change {
        Change {
            place: None,
            setting: Setting::Sysctl { path: path.to_owned(), device: None },
            from: from.to_string(),
            to: to.to_string(),
        }
    }

    /// Runs a command in the caller's namespace; `inverse` undoes it.
    ///
    /// # Errors
    /// If the namespace is unknown.
    pub fn command_with_inverse(command: &str, inverse: &str) -> Result<Change, sys::Error> {
        let (from, to) = (inverse.to_owned(), command.to_owned());
        Ok(Change { place: Some(Namespace::here()?), setting: Setting::Command, from, to })
    }

    /// Whether the setting already has the new value.
    pub fn is_so(&self) -> bool {
        same(&self.from, &self.to)
    }

    pub fn command(&self) -> String {
        self.command_to(&self.to)
    }

    pub fn undo(&self) -> String {
        self.command_to(&self.from)
    }

    fn command_to(&self, value: &str) -> String {
        let value_word = quote(value);
        let command = match &self.setting {
            Setting::Sysctl { path, .. } => format!("sysctl -w {}={value_word}", quote(path)),
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
            // Needs a shell, because nsenter runs a program, not a command line.
            (Some(Namespace { path: Some(path), .. }), Setting::Command) => {
                inside(Some(path), &format!("sh -c {}", quote(&command)))
            }
            (Some(place), _) => inside(place.path.as_deref(), &command),
            (None, _) => command,
        }
    }

    /// Returns a command that writes a file below `/sys`. A sysfs mount shows the devices of the
    /// namespace that mounted it.
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

    /// Names the setting and its namespace, in words.
    pub fn object(&self) -> String {
        let place = self.place.as_ref().map_or("machine", |place| place.label.as_str());
        match &self.setting {
            Setting::Sysctl { path, .. } => format!("{place}: {path}"),
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

/// Whether this is the machine's first namespace. Both are open, so equal inode numbers mean one
/// namespace.
pub(crate) fn is_first(netns: &NetNs) -> bool {
    first().is_some_and(|first| first.inode() == netns.inode())
}

/// Whether two texts mean the same value: the kernel pads masks with zeros and separates columns
/// with tabs.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let plain = |text: &str| {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        words.join(" ")
    };
    let mask = |text: &str| text.replace(',', "").trim_start_matches('0').to_owned();
    let (a, b) = (plain(one), plain(other));
    a == b || !a.is_empty() && !b.is_empty() && is_mask(&a) && is_mask(&b) && mask(&a) == mask(&b)
}

fn is_mask(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_where_the_setting_is() {
        let place = Namespace {
            inode: 4026531840,
            cookie: None,
            first: false,
            path: Some("/run/netns/web 1".to_owned()),
            label: "web 1".to_owned(),
        };
        let device = Device { name: "eth0;x".to_owned(), index: 2, ..Device::default() };
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
