//! Configuration that the L3 agent applies in the router's namespace: addresses, sysctls, rules.
//!
//! Source: `neutron/agent/l3/router_info.py` and `neutron/agent/linux/iptables_manager.py`, for a
//! centralized router without DVR and a single address scope. The metadata proxy's rules are
//! included, the proxy is not.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::process::Command;

use testbed::Host;

use super::{Net, default_route};
use crate::unsupported::{Supported, find_program};
use crate::{Capabilities, Result};

const PROGRAM: &str = "iptables-restore";
/// Debian package with the program.
const PACKAGE: &str = "iptables";

/// Checks whether the router's rules can be loaded.
pub(crate) fn probe(machine: &Capabilities) -> Supported {
    machine.program(PROGRAM, PACKAGE)?;
    let rules = rules(&[Net::One, Net::Outside], Some((super::FLOATING, Net::One.end())));
    machine.iptables(|host| restore(host, &rules))
}

/// Enables forwarding and loads the rules. `floating` is a floating IP address and the tenant
/// address that it maps to.
pub(crate) fn prepare(
    router: &Host,
    nets: &[Net],
    floating: Option<(Ipv4Addr, Ipv4Addr)>,
) -> Result<()> {
    // As `RouterNamespace.create` and `LinuxInterfaceDriver` of Neutron do.
    router.forward()?;
    for (setting, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
        router.sysctl(&format!("net/ipv4/conf/all/{setting}"), value)?;
    }
    restore(router, &rules(nets, floating))
}

/// Assigns the addresses of the router's devices, and adds the route outside.
pub(crate) fn address(
    router: &Host,
    nets: &[Net],
    floating: Option<(Ipv4Addr, Ipv4Addr)>,
) -> Result<()> {
    for net in nets {
        router.address(&net.router_device(), net.router(), 24)?;
    }
    let outside = Net::Outside.router_device();
    // Without the outside network there is no default route.
    if nets.contains(&Net::Outside) {
        router.netlink().add_route(&default_route(Net::Outside.end(), &outside))?;
    }
    if let Some((address, _)) = floating {
        router.address(&outside, address, 32)?;
    }
    Ok(())
}

fn restore(host: &Host, rules: &str) -> Result<()> {
    // If it was removed since the probe, starting it fails with its name.
    let program = find_program(PROGRAM).unwrap_or_else(|| PROGRAM.into());
    host.run_with_input(&mut Command::new(program), rules).map(drop)
}

/// Returns the agent's rules in `iptables-save` format.
pub(super) fn rules(nets: &[Net], floating: Option<(Ipv4Addr, Ipv4Addr)>) -> String {
    let outside = nets.contains(&Net::Outside).then(|| Net::Outside.router_device());
    let devices: Vec<String> = nets.iter().map(|net| net.router_device()).collect();
    ["raw", "mangle", "nat", "filter"]
        .map(|table| match table {
            "raw" => Table::new(&["PREROUTING", "OUTPUT"]).text(table),
            "mangle" => mangle(&devices, outside.as_deref()).text(table),
            "nat" => nat(outside.as_deref(), floating).text(table),
            _ => filter(&devices, outside.as_deref()).text(table),
        })
        .concat()
}

/// Packet mark of the only address scope (`ADDRESS_SCOPE_MARK_ID_MIN`).
const SCOPE: &str = "0x4000000/0xffff0000";

fn mangle(devices: &[String], outside: Option<&str>) -> Table {
    let mut table = Table::new(&["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]);
    table.chains(&["mark", "scope", "floatingip", "float-snat"]);
    let to_marks = "--nfmask 0xffff0000 --ctmask 0xffff0000";
    let unmarked = "-m connmark --mark 0x0/0xffff0000";
    table.rule("PREROUTING", "-j neutron-l3-agent-mark");
    table.rule("PREROUTING", "-j neutron-l3-agent-scope");
    table.rule(
        "PREROUTING",
        &format!("-m connmark ! --mark 0x0/0xffff0000 -j CONNMARK --restore-mark {to_marks}"),
    );
    table.rule("PREROUTING", "-j neutron-l3-agent-floatingip");
    table.rule(
        "PREROUTING",
        "-d 169.254.169.254/32 -i qr-+ -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x1/0xffff",
    );
    table.rule("float-snat", &format!("{unmarked} -j CONNMARK --save-mark {to_marks}"));
    if let Some(outside) = outside {
        table.rule("mark", &format!("-i {outside} -j MARK --set-xmark 0x2/0xffff"));
        table.rule(
            "POSTROUTING",
            &format!("-o {outside} {unmarked} -j CONNMARK --save-mark {to_marks}"),
        );
    }
    for device in devices {
        table.rule("scope", &format!("-i {device} -j MARK --set-xmark {SCOPE}"));
    }
    table
}

fn nat(outside: Option<&str>, floating: Option<(Ipv4Addr, Ipv4Addr)>) -> Table {
    let mut table = Table::new(&["PREROUTING", "OUTPUT", "POSTROUTING"]);
    table.chains(&["snat", "float-snat"]);
    table.shared("neutron-postrouting-bottom");
    table.built_in("POSTROUTING", "-j neutron-postrouting-bottom");
    table.built_in(
        "neutron-postrouting-bottom",
        "-m comment --comment \"Perform source NAT on outgoing traffic.\" -j neutron-l3-agent-snat",
    );
    table.rule("snat", "-j neutron-l3-agent-float-snat");
    table.rule(
        "PREROUTING",
        "-d 169.254.169.254/32 -i qr-+ -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 9697",
    );
    if let Some((address, fixed)) = floating {
        for chain in ["PREROUTING", "OUTPUT"] {
            table.rule(chain, &format!("-d {address}/32 -j DNAT --to-destination {fixed}"));
        }
        let source = format!("-s {fixed}/32 -j SNAT --to-source {address} --random-fully");
        table.rule("float-snat", &source);
    }
    if let Some(outside) = outside {
        let source = format!("-j SNAT --to-source {} --random-fully", Net::Outside.router());
        table.rule("snat", &format!("-o {outside} {source}"));
        table.rule(
            "snat",
            &format!("-m mark ! --mark 0x2/0xffff -m conntrack --ctstate DNAT {source}"),
        );
        table.rule(
            "POSTROUTING",
            &format!("! -o {outside} -m conntrack ! --ctstate DNAT -j ACCEPT"),
        );
    }
    table
}

fn filter(devices: &[String], outside: Option<&str>) -> Table {
    let mut table = Table::new(&["INPUT", "FORWARD", "OUTPUT"]);
    table.chains(&["scope", "local"]);
    table.shared("neutron-filter-top");
    table.rules.insert(0, "-A FORWARD -j neutron-filter-top".to_owned());
    table.rules.insert(0, "-A OUTPUT -j neutron-filter-top".to_owned());
    table.built_in("neutron-filter-top", "-j neutron-l3-agent-local");
    table.rule("FORWARD", "-j neutron-l3-agent-scope");
    table.rule("INPUT", "-m mark --mark 0x1/0xffff -j ACCEPT");
    table.rule("INPUT", "-p tcp -m tcp --dport 9697 -j DROP");
    table.rule("scope", "-m mark --mark 0x1/0xffff -j DROP");
    // Traffic to the outside may be of any scope, since its source is translated.
    for device in devices.iter().filter(|device| Some(device.as_str()) != outside) {
        table.rule("scope", &format!("-o {device} -m mark ! --mark {SCOPE} -j DROP"));
    }
    table
}

/// Chains and rules of one table.
struct Table {
    chains: Vec<String>,
    rules: Vec<String>,
}

impl Table {
    /// Creates a table whose built-in chains jump to the agent's chains of the same name.
    fn new(built_in: &[&str]) -> Table {
        let mut table = Table { chains: Vec::new(), rules: Vec::new() };
        table.chains(built_in);
        for chain in built_in {
            table.built_in(chain, &format!("-j neutron-l3-agent-{chain}"));
        }
        table
    }

    fn chains(&mut self, names: &[&str]) {
        self.chains.extend(names.iter().map(|name| format!("neutron-l3-agent-{name}")));
    }

    /// Adds a chain shared between agents.
    fn shared(&mut self, name: &str) {
        self.chains.push(name.to_owned());
    }

    fn rule(&mut self, chain: &str, rule: &str) {
        self.rules.push(format!("-A neutron-l3-agent-{chain} {rule}"));
    }

    fn built_in(&mut self, chain: &str, rule: &str) {
        self.rules.push(format!("-A {chain} {rule}"));
    }

    fn text(&self, name: &str) -> String {
        let mut text = format!("*{name}\n");
        // Writing to a string never fails.
        for chain in &self.chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for rule in &self.rules {
            let _ = writeln!(text, "{rule}");
        }
        text + "COMMIT\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_without_an_outside_translates_nothing() {
        let rules = rules(&[Net::One, Net::Two], None);
        assert!(!rules.contains("SNAT") && !rules.contains("qg-"), "{rules}");
        assert_eq!(rules.matches("\nCOMMIT\n").count(), 4);
    }

    #[test]
    fn one_address_or_many_are_translated() {
        let many = rules(&[Net::One, Net::Outside], None);
        let source = "-A neutron-l3-agent-snat -o qg-ext -j SNAT --to-source 203.0.113.2";
        assert!(many.contains(source) && !many.contains("DNAT --to"), "{many}");
        let one = rules(&[Net::One, Net::Outside], Some((super::super::FLOATING, Net::One.end())));
        for rule in [
            "-A neutron-l3-agent-PREROUTING -d 203.0.113.10/32 -j DNAT --to-destination 10.1.0.11",
            "-A neutron-l3-agent-float-snat -s 10.1.0.11/32 -j SNAT --to-source 203.0.113.10",
            // The floating IP's rule must come before the shared address's.
            "-A neutron-l3-agent-snat -j neutron-l3-agent-float-snat",
            source,
        ] {
            assert!(one.contains(rule), "{rule}\n{one}");
        }
        let at = |rule| one.find(rule).unwrap();
        assert!(at("-snat -j neutron-l3-agent-float-snat") < at("-snat -o qg-ext"));
    }
}
