//! Start options of guests and their TAP devices: `vm:…` and `tap:…` settings.
//!
//! QEMU takes them at start, so each value needs its own guests. The values in force are read
//! back ([`crate::guest_in_force`]).

use std::fmt;
use std::process::Command;
use std::sync::OnceLock;

use crate::Unsupported;
use crate::unsupported::Supported;

/// Start options of guests. `None` keeps QEMU's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestOptions {
    /// CPUs of each guest. Default: the number of queues.
    pub cpus: Option<u32>,
    /// Queue pairs of the virtio-net device, and queues of its TAP device.
    pub queues: Option<u32>,
    /// The kernel moves packets (`/dev/vhost-net`) instead of QEMU.
    pub vhost: Option<bool>,
    /// A packet may take several receive buffers (`VIRTIO_NET_F_MRG_RXBUF`).
    pub mrg_rxbuf: Option<bool>,
    /// GSO packets in UDP tunnels stay whole (`VIRTIO_NET_F_HOST_UDP_TUNNEL_GSO` and its guest
    /// counterpart).
    pub tunnel_gso: Option<bool>,
    /// Queue length of the TAP device, packets per queue.
    pub txqueuelen: Option<u32>,
    /// Send buffer of the TAP device, bytes (`TUNSETSNDBUF`).
    pub sndbuf: Option<u32>,
}

/// The program that runs guests.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// Maximum number of CPUs and of queues of a guest.
const MOST_QUEUES: u32 = 64;
/// Maximum queue length of a TAP device, packets. The kernel allocates a pointer for each.
const MOST_PACKETS: u32 = 1 << 20;
/// Part of the error for unknown settings.
const ALLOWED: &str = "allowed: vm:cpus=N,…, vm:queues=N,…, vm:vhost=on|off, \
                       vm:mrg_rxbuf=on|off, vm:tunnel-gso=on|off, tap:txqueuelen=PACKETS,… and \
                       tap:sndbuf=BYTES,…";

impl GuestOptions {
    /// QEMU's defaults: one CPU, one queue.
    pub const AS_FOUND: GuestOptions = GuestOptions {
        cpus: None,
        queues: None,
        vhost: None,
        mrg_rxbuf: None,
        tunnel_gso: None,
        txqueuelen: None,
        sndbuf: None,
    };

    pub(crate) fn cpu_count(&self) -> u32 {
        self.cpus.unwrap_or(self.queue_count())
    }

    pub(crate) fn queue_count(&self) -> u32 {
        self.queues.unwrap_or(1)
    }

    /// Returns the suffix of `-netdev vhost-user`.
    pub(crate) fn netdev_queues(&self) -> String {
        match self.queue_count() {
            // QEMU's default.
            1 => String::new(),
            queues => format!(",queues={queues}"),
        }
    }

    /// Returns the suffix of `-netdev tap`.
    pub(crate) fn netdev(&self) -> String {
        let mut text = self.netdev_queues();
        text += &switch("vhost", self.vhost);
        if let Some(bytes) = self.sndbuf {
            text += &format!(",sndbuf={bytes}");
        }
        text
    }

    /// Returns the suffix of `-device virtio-net-pci`, with MSI-X or with one shared interrupt.
    pub(crate) fn device(&self, msi_x: bool) -> String {
        let mut text = String::new();
        let queues = self.queue_count();
        if queues > 1 {
            text += ",mq=on";
        }
        match (msi_x, queues) {
            // No MSI-X: one shared interrupt.
            (false, _) => text += ",vectors=0",
            // QEMU's default fits a single queue pair.
            (true, 1) => {}
            // One vector per queue and direction, one for the control queue, one for
            // configuration changes.
            (true, _) => text += &format!(",vectors={}", 2 * queues + 2),
        }
        text += &switch("mrg_rxbuf", self.mrg_rxbuf);
        // A QEMU without these properties behaves like `off` and would reject them.
        if self.tunnel_gso.is_some() && knows_tunnels().is_ok() {
            for property in TUNNEL_PROPERTIES {
                text += &switch(property, self.tunnel_gso);
            }
        }
        text
    }

    /// Returns the first setting that this backend does not support.
    fn beyond(&self, behind: Behind) -> Option<&'static str> {
        let tap = behind == Behind::Tap;
        [
            (self.queue_count() > 1, "vm:queues", behind != Behind::Stack),
            (self.vhost == Some(true), "vm:vhost", tap),
            (self.tunnel_gso == Some(true), "vm:tunnel-gso", tap),
            (self.txqueuelen.is_some(), "tap:txqueuelen", tap),
            (self.sndbuf.is_some(), "tap:sndbuf", tap),
        ]
        .into_iter()
        .find_map(|(asked, name, can)| (asked && !can).then_some(name))
    }

    /// Merges the settings. Fails with the name of a setting that both contain.
    fn and(mut self, more: GuestOptions) -> Result<GuestOptions, &'static str> {
        join("vm:cpus", &mut self.cpus, more.cpus)?;
        join("vm:queues", &mut self.queues, more.queues)?;
        join("vm:vhost", &mut self.vhost, more.vhost)?;
        join("vm:mrg_rxbuf", &mut self.mrg_rxbuf, more.mrg_rxbuf)?;
        join("vm:tunnel-gso", &mut self.tunnel_gso, more.tunnel_gso)?;
        join("tap:txqueuelen", &mut self.txqueuelen, more.txqueuelen)?;
        join("tap:sndbuf", &mut self.sndbuf, more.sndbuf)?;
        Ok(self)
    }
}

/// Backend of a guest's NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    /// A TAP device in the host.
    Tap,
    /// A program that accesses the guest's virtqueues (vhost-user).
    VhostUser,
    /// QEMU's user-space stack (libslirp).
    Stack,
}

impl Behind {
    /// Returns the reason why a setting from [`GuestOptions::beyond`] is not supported.
    const fn lacks(self) -> &'static str {
        match self {
            Behind::Tap | Behind::VhostUser => "the guests of this mode have no TAP device",
            Behind::Stack => "QEMU's own stack (libslirp) has no TAP device, and only one queue",
        }
    }
}

/// QEMU's properties for tunnel GSO, one per direction.
const TUNNEL_PROPERTIES: [&str; 2] = ["host_tunnel", "guest_tunnel"];

fn switch(name: &str, on: Option<bool>) -> String {
    on.map_or_else(String::new, |on| format!(",{name}={}", if on { "on" } else { "off" }))
}

fn join<T>(name: &'static str, to: &mut Option<T>, more: Option<T>) -> Result<(), &'static str> {
    match (to.is_some(), more.is_some()) {
        (true, true) => Err(name),
        (_, true) => {
            *to = more;
            Ok(())
        }
        // Options of one guest join without a contradiction.
        (_, false) => Ok(()),
    }
}

/// Options, with the text that requested them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSetting {
    text: String,
    options: GuestOptions,
}

impl fmt::Display for GuestSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A malformed setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuestSettingError(String);

impl GuestSetting {
    /// Returns whether a text has the prefix of such a setting.
    pub fn is_named(text: &str) -> bool {
        ["vm:", "tap:"].iter().any(|prefix| text.trim_start().starts_with(prefix))
    }

    /// Parses `vm:KIND=VALUE,VALUE…` or `tap:KIND=VALUE,…` into one setting per value. Settings
    /// joined with `+`, each with one value, are one setting.
    ///
    /// # Errors
    /// The malformed part, and the allowed values.
    pub fn parse_list(text: &str) -> Result<Vec<GuestSetting>, GuestSettingError> {
        let mut settings = match text.contains('+') {
            true => vec![joined(text)?],
            false => list(text)?,
        };
        for setting in &mut settings {
            let GuestOptions { cpus, queues, .. } = setting.options;
            // The guest's driver enables at most one queue pair per CPU.
            if let (Some(cpus), Some(queues)) = (cpus, queues)
                && cpus < queues
            {
                return wrong(format!("{text}: a guest cannot use more queues than it has CPUs"));
            }
        }
        Ok(settings)
    }

    pub fn options(&self) -> &GuestOptions {
        &self.options
    }
}

fn wrong<T>(problem: String) -> Result<T, GuestSettingError> {
    Err(GuestSettingError(problem))
}

fn joined(text: &str) -> Result<GuestSetting, GuestSettingError> {
    let mut options = GuestOptions::AS_FOUND;
    for part in text.split('+') {
        // A setting that is changed at run time needs no guests of its own.
        if !GuestSetting::is_named(part) {
            return wrong(format!(
                "{text:?}: vm: and tap: settings apply when guests start, and {:?} is changed \
                 while they run: give it separately",
                part.trim()
            ));
        }
        // Several values would make several settings.
        let [one] = &list(part)?[..] else {
            return wrong(format!("{part:?}: settings joined with + take one value each"));
        };
        options = options
            .and(one.options)
            .map_err(|name| GuestSettingError(format!("{text:?}: {name} is given twice")))?;
    }
    Ok(GuestSetting { text: text.trim().to_owned(), options })
}

fn list(text: &str) -> Result<Vec<GuestSetting>, GuestSettingError> {
    let Some((name, values)) = text.trim().split_once('=') else {
        return wrong(format!("{text:?}: {ALLOWED}"));
    };
    values.split(',').map(|value| one(name, value.trim())).collect()
}

fn one(name: &str, value: &str) -> Result<GuestSetting, GuestSettingError> {
    let number = |most: u32| {
        let number = value.parse().ok().filter(|number| (1..=most).contains(number));
        let problem = format!("{name}={value}: expected a number from 1 to {most}");
        number.map(Some).ok_or(GuestSettingError(problem))
    };
    let on = || match value {
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        _ => wrong(format!("{name}={value}: expected on or off")),
    };
    let found = GuestOptions::AS_FOUND;
    let options = match name {
        "vm:cpus" => GuestOptions { cpus: number(MOST_QUEUES)?, ..found },
        "vm:queues" => GuestOptions { queues: number(MOST_QUEUES)?, ..found },
        "vm:vhost" => GuestOptions { vhost: on()?, ..found },
        "vm:mrg_rxbuf" => GuestOptions { mrg_rxbuf: on()?, ..found },
        "vm:tunnel-gso" => GuestOptions { tunnel_gso: on()?, ..found },
        "tap:txqueuelen" => GuestOptions { txqueuelen: number(MOST_PACKETS)?, ..found },
        "tap:sndbuf" => GuestOptions { sndbuf: number(i32::MAX.unsigned_abs())?, ..found },
        // QEMU has other options, but none that could be read back.
        _ => return wrong(format!("{name:?}: {ALLOWED}")),
    };
    Ok(GuestSetting { text: format!("{name}={value}"), options })
}

/// Checks whether this machine's QEMU has the properties for tunnel GSO. Asked once.
fn knows_tunnels() -> Result<(), &'static str> {
    static KNOWN: OnceLock<Result<(), String>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let said = |words: &[&str]| match Command::new(QEMU).args(words).output() {
            Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Err(error) => Err(format!("{QEMU}: {error}")),
        };
        let properties = said(&["-device", "virtio-net-pci,help"])?;
        let missing =
            TUNNEL_PROPERTIES.into_iter().find(|name| !properties.contains(&format!(" {name}=")));
        let Some(missing) = missing else { return Ok(()) };
        let version = said(&["--version"])?;
        let version = version.lines().next().unwrap_or_default().trim().to_owned();
        Err(format!("{version}: its virtio-net-pci has no property {missing}"))
    });
    known.as_ref().copied().map_err(String::as_str)
}

/// Checks whether guests can start with these options behind this backend.
pub(crate) fn takes(options: &GuestOptions, behind: Behind) -> Supported {
    if let Some(name) = options.beyond(behind) {
        return Err(Unsupported::new(
            format!("{name}: {}", behind.lacks()),
            "use a vm-… mode with TAP devices",
        ));
    }
    if options.vhost == Some(true) {
        const DEVICE: &str = "/dev/vhost-net";
        // Check here: QEMU silently continues without vhost if it cannot open the device.
        std::fs::File::options().read(true).write(true).open(DEVICE).map_err(|error| {
            Unsupported::new(
                format!("vm:vhost=on: {DEVICE}: {error}"),
                "load it (modprobe vhost_net), or use a kernel with CONFIG_VHOST_NET",
            )
        })?;
    }
    // Only `on` needs support: without it, QEMU behaves like `off`.
    if options.tunnel_gso == Some(true) {
        knows_tunnels().map_err(|reason| {
            Unsupported::new(format!("vm:tunnel-gso=on: {reason}"), "use QEMU 10.1 or later")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        GuestSetting::parse_list(text).unwrap().iter().map(ToString::to_string).collect()
    }

    fn options(text: &str) -> GuestOptions {
        *GuestSetting::parse_list(text).unwrap()[0].options()
    }

    #[test]
    fn a_list_is_a_setting_a_value_and_a_sum_is_one() {
        assert_eq!(names("vm:queues=1,2"), ["vm:queues=1", "vm:queues=2"]);
        assert_eq!(names("vm:vhost=on,off"), ["vm:vhost=on", "vm:vhost=off"]);
        let both = "vm:queues=2+tap:txqueuelen=50";
        assert_eq!(names(both), [both]);
        let wanted =
            GuestOptions { queues: Some(2), txqueuelen: Some(50), ..GuestOptions::AS_FOUND };
        assert_eq!(options(both), wanted);
    }

    #[test]
    fn problems_are_named() {
        for (bad, named) in [
            ("vm:queue=1", "allowed: vm:cpus"),
            ("vm:", "allowed: vm:cpus"),
            ("vm:queues=0", "a number from 1 to 64"),
            ("vm:queues=65", "a number from 1 to 64"),
            ("vm:queues=2,", "vm:queues=: expected a number"),
            ("vm:vhost=yes", "expected on or off"),
            ("tap:sndbuf=2147483648", "1 to 2147483647"),
            ("tap:txqueuelen=0", "a number from 1"),
            ("vm:queues=1,2+vm:cpus=2", "one value each"),
            ("vm:queues=1+vm:queues=2", "vm:queues is given twice"),
            ("vm:queues=4+vm:cpus=2", "more queues than it has CPUs"),
            ("vm:queues=2+ring=50", "changed while they run"),
        ] {
            let problem = GuestSetting::parse_list(bad).unwrap_err().to_string();
            assert!(problem.contains(named), "{bad}: {problem}");
        }
        assert!(!GuestSetting::is_named("queues=2") && GuestSetting::is_named("tap:x"));
    }

    #[test]
    fn options_that_a_guest_s_nic_cannot_have_are_named() {
        let beyond = |text, behind| options(text).beyond(behind);
        for (text, name) in [
            ("vm:vhost=on", "vm:vhost"),
            ("vm:tunnel-gso=on", "vm:tunnel-gso"),
            ("tap:txqueuelen=50", "tap:txqueuelen"),
            ("tap:sndbuf=4096", "tap:sndbuf"),
        ] {
            assert_eq!(beyond(text, Behind::Tap), None);
            assert_eq!(beyond(text, Behind::VhostUser), Some(name));
            assert_eq!(beyond(text, Behind::Stack), Some(name));
        }
        assert_eq!(beyond("vm:queues=2", Behind::VhostUser), None);
        assert_eq!(beyond("vm:queues=2", Behind::Stack), Some("vm:queues"));
        assert_eq!(beyond("vm:mrg_rxbuf=off", Behind::Stack), None);
    }

    #[test]
    fn qemu_gets_only_options_that_differ() {
        let said = |options: GuestOptions| (options.netdev(), options.device(true));
        assert_eq!(said(GuestOptions::AS_FOUND), (String::new(), String::new()));
        assert_eq!(GuestOptions::AS_FOUND.cpu_count(), 1);
        let (netdev, device) = said(options("vm:queues=2+vm:vhost=off+vm:mrg_rxbuf=off"));
        assert_eq!(netdev, ",queues=2,vhost=off");
        assert_eq!(device, ",mq=on,vectors=6,mrg_rxbuf=off");
        assert_eq!(options("vm:queues=2").cpu_count(), 2);
        assert_eq!(options("vm:queues=2").netdev_queues(), ",queues=2");
        assert_eq!(options("vm:queues=2").device(false), ",mq=on,vectors=0");
        assert_eq!(GuestOptions::AS_FOUND.device(false), ",vectors=0");
        assert_eq!(options("tap:sndbuf=4096").netdev(), ",sndbuf=4096");
    }
}
