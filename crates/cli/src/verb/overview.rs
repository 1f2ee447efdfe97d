//! `overlane` without arguments: the abilities of this machine, and three commands to start with.

use std::path::Path;

use lab::Capabilities;

use crate::exit::Exit;
use crate::output::print_folded;

/// The mode that needs what `accel` needs.
const ACCELERATED: &str = "vxlan+accel";
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Prints the overview. It changes nothing.
pub fn run() -> anyhow::Result<Exit> {
    let root = nix::unistd::geteuid().is_root();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    print_folded(&text(&Machine {
        kernel: kernel.trim().to_owned(),
        root,
        btf: Path::new(BTF).exists(),
        modes: modes().map_err(|error| format!("{error:#}")),
        vxlan: vxlan_devices(Path::new("/sys/class/net")),
    }))?;
    Ok(Exit::Done)
}

/// Facts for the overview.
struct Machine {
    kernel: String,
    root: bool,
    btf: bool,
    modes: Result<Modes, String>,
    /// VXLAN devices of this network namespace.
    vxlan: Vec<String>,
}

struct Modes {
    buildable: usize,
    all: usize,
    /// Why `accel` cannot run; `None` if it can.
    no_accel: Option<String>,
}

fn modes() -> anyhow::Result<Modes> {
    let machine = Capabilities::new(testbed::acquire()?)?;
    let probed: Vec<_> = lab::groups()
        .iter()
        .flat_map(|group| group.modes.iter())
        .map(|mode| (mode.name(), mode.probe(&machine).err()))
        .collect();
    let accel = probed.iter().find(|(name, _)| *name == ACCELERATED);
    Ok(Modes {
        buildable: probed.iter().filter(|(_, lacking)| lacking.is_none()).count(),
        all: probed.len(),
        no_accel: accel.and_then(|(_, lacking)| Some(lacking.as_ref()?.reason.clone())),
    })
}

/// Returns the names of VXLAN devices, sorted.
fn vxlan_devices(class: &Path) -> Vec<String> {
    let Ok(devices) = class.read_dir() else { return Vec::new() };
    let mut names: Vec<String> = devices
        .flatten()
        .filter(|device| {
            std::fs::read_to_string(device.path().join("uevent"))
                .is_ok_and(|text| text.lines().any(|line| line == "DEVTYPE=vxlan"))
        })
        .map(|device| foreign::plain(&device.file_name().to_string_lossy()).into_owned())
        .collect();
    names.sort();
    names
}

fn text(machine: &Machine) -> String {
    let Machine { kernel, root, btf, modes, vxlan } = machine;
    let user = if *root { "as root" } else { "as an ordinary user" };
    let lab = match modes {
        Ok(modes) => {
            format!("{} of {} network modes can be built", modes.buildable, modes.all)
        }
        Err(error) => format!("no: {error}"),
    };
    let doctor = if *root { "reads everything" } else { "reads what your permissions allow" };
    let watch = match (btf, root) {
        (false, _) => format!("no: the kernel has no BTF ({BTF})"),
        (true, false) => "no: needs root".to_owned(),
        (true, true) => "yes".to_owned(),
    };
    let accel = match (root, modes) {
        (false, _) => "no: needs root".to_owned(),
        (true, Ok(Modes { no_accel: Some(reason), .. })) => format!("no: {reason}"),
        (true, Err(_)) => "unknown".to_owned(),
        (true, Ok(_)) if vxlan.is_empty() => {
            "yes, but this namespace has no VXLAN device".to_owned()
        }
        (true, Ok(_)) => format!("yes: {}", some(vxlan)),
    };
    format!(
        "\
overlane {version}, Linux {kernel}, {user}

  lab           {lab}
  doctor        {doctor}
  watch, trace  {watch}
  accel         {accel}

Three commands to start with:
  overlane lab run --quick   compare modes with the bare host; changes nothing
  overlane doctor            find problems of this host's networks and remedies
  overlane watch             see where packets are cut, merged, delayed, dropped

A guided tour: overlane tour     All commands: overlane --help
",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// Names some devices, so that the line stays short.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let first = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_states_the_reason() {
        let modes = |no_accel: Option<&str>| {
            Ok(Modes { buildable: 3, all: 5, no_accel: no_accel.map(str::to_owned) })
        };
        let machine = |root, btf, modes, vxlan: &[&str]| {
            let vxlan = vxlan.iter().map(|name| (*name).to_owned()).collect();
            text(&Machine { kernel: "6.6.1".to_owned(), root, btf, modes, vxlan })
        };
        for (shown, wanted) in [
            (machine(true, true, modes(None), &["a", "b"]), "accel         yes: a, b\n"),
            (machine(true, true, modes(None), &["a", "b", "c", "d"]), "a, b, c and 1 more\n"),
            (machine(true, true, modes(None), &[]), "no VXLAN device\n"),
            (
                machine(true, true, modes(Some("Linux 5.10")), &["a"]),
                "accel         no: Linux 5.10\n",
            ),
            (machine(false, true, modes(None), &["a"]), "accel         no: needs root\n"),
            (machine(false, true, modes(None), &[]), "watch, trace  no: needs root\n"),
            (machine(true, false, modes(None), &[]), "watch, trace  no: the kernel has no BTF"),
            (
                machine(true, true, Err("no namespaces".to_owned()), &[]),
                "lab           no: no namespaces\n",
            ),
            (machine(true, true, modes(None), &[]), "3 of 5 network modes"),
        ] {
            assert!(shown.contains(wanted), "{wanted}: {shown}");
            assert!(shown.lines().count() <= 14, "{shown}");
            assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        }
    }

    #[test]
    fn vxlan_devices_are_found_by_their_type() {
        let class = tempfile::tempdir().unwrap();
        for (name, uevent) in [
            ("b", "DEVTYPE=vxlan\nINTERFACE=b\n"),
            ("a", "DEVTYPE=vxlan\n"),
            ("c", "DEVTYPE=bridge\n"),
        ] {
            std::fs::create_dir(class.path().join(name)).unwrap();
            std::fs::write(class.path().join(name).join("uevent"), uevent).unwrap();
        }
        std::fs::write(class.path().join("bonding_masters"), "").unwrap();
        assert_eq!(vxlan_devices(class.path()), ["a", "b"]);
        assert!(vxlan_devices(&class.path().join("none")).is_empty());
    }
}
