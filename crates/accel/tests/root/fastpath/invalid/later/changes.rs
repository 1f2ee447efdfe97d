//! The changes, each with its reverse.

use std::time::Duration;

use super::super::world::{Shape, World};

/// A change of one host.
pub(super) struct Change {
    pub(super) name: &'static str,
    /// The host that changes: the client's or the server's.
    pub(super) host: usize,
    script: &'static str,
    undo: &'static str,
    /// Time until it has its effect, beyond that of rules.
    pub(super) wait: Duration,
    /// Pause between two volleys of packets.
    pub(super) silence: Duration,
    /// Packets are sent for longer than a second.
    pub(super) is_steady: bool,
    on: On,
}

/// Where a change means something.
enum On {
    All,
    Routed,
    Bridged,
    /// Over IPv4.
    Four,
    RoutedFour,
    Six,
}

impl Change {
    pub(super) fn is_for(&self, shape: Shape, v6: bool) -> bool {
        match self.on {
            On::All => true,
            On::Routed => shape == Shape::Routed,
            On::Bridged => shape == Shape::Bridged,
            On::Four => !v6,
            On::RoutedFour => shape == Shape::Routed && !v6,
            On::Six => v6,
        }
    }

    /// Runs a script in the host. Prints why a tool or the kernel refuses.
    fn run(&self, world: &World, script: &str) -> bool {
        let script = fill(script, world);
        let mut command = std::process::Command::new("sh");
        world.hosts[self.host]
            .run(command.args(["-ec", &script]))
            .map_err(|e| eprintln!("{}: {e}", self.name))
            .is_ok()
    }

    /// Whether tools and kernel know the change.
    pub(super) fn is_possible(&self, world: &World) -> bool {
        let is = self.run(world, self.script);
        self.run(world, &format!("set +e; {}", self.undo));
        world.read_bridges();
        is
    }

    pub(super) fn make(&self, world: &World) {
        assert!(self.run(world, self.script), "{}", self.name);
        world.read_bridges();
    }

    pub(super) fn unmake(&self, world: &World) {
        assert!(self.run(world, self.undo), "undo {}", self.name);
        world.read_bridges();
    }
}

/// CLIENT, SERVER: addresses. IPT: iptables of the IP version.
fn fill(script: &str, world: &World) -> String {
    let [ipt, client, server, family, bits] = match world.v6 {
        true => ["ip6tables-nft", "fd00::11", "fd00::12", "ip6", "128"],
        false => ["iptables-nft", "10.1.0.11", "10.1.0.12", "ip", "32"],
    };
    script
        .replace("IPT", ipt)
        .replace("CLIENT", client)
        .replace("SERVER", server)
        .replace("FAMILY", family)
        .replace("BITS", bits)
}

const fn change(name: &'static str, script: &'static str, undo: &'static str, on: On) -> Change {
    Change {
        name,
        host: 0,
        script,
        undo,
        wait: Duration::ZERO,
        silence: Duration::ZERO,
        is_steady: false,
        on,
    }
}

const fn rule(name: &'static str, script: &'static str) -> Change {
    change(name, script, "nft delete table inet x", On::All)
}

const fn rule4(name: &'static str, script: &'static str) -> Change {
    change(name, script, "nft delete table inet x", On::Four)
}

/// A rule in a chain `c` at the hook `forward`.
macro_rules! forward {
    ($name:literal, $rule:literal) => {
        forward!(rule, $name, "", $rule)
    };
    ($name:literal, $objects:literal, $rule:literal) => {
        forward!(rule, $name, $objects, $rule)
    };
    ($rule_of:ident, $name:literal, $objects:literal, $rule:literal) => {
        $rule_of(
            $name,
            concat!(
                "nft 'table inet x { ",
                $objects,
                " chain c { type filter hook forward priority 1; ",
                $rule,
                "; }; }'"
            ),
        )
    };
}

/// The same, only over IPv4.
macro_rules! forward4 {
    ($name:literal, $rule:literal) => {
        forward!(rule4, $name, "", $rule)
    };
}

macro_rules! ipt {
    ($name:literal, $rule:literal) => {
        change($name, concat!("IPT -I FORWARD ", $rule), concat!("IPT -D FORWARD ", $rule), On::All)
    };
}

macro_rules! ipt4 {
    ($name:literal, $rule:literal) => {
        change(
            $name,
            concat!("IPT -I FORWARD ", $rule),
            concat!("IPT -D FORWARD ", $rule),
            On::Four,
        )
    };
}

const fn later(change: Change, ms: u64) -> Change {
    Change { wait: Duration::from_millis(ms), ..change }
}

const fn silent(change: Change, ms: u64) -> Change {
    Change { silence: Duration::from_millis(ms), ..change }
}

const fn steady(change: Change) -> Change {
    Change { is_steady: true, ..change }
}

const fn at_server(change: Change) -> Change {
    Change { host: 1, ..change }
}

pub(super) mod conntrack;
pub(super) mod expressions;
pub(super) mod machine;
pub(super) mod matches;
