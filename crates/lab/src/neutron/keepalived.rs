//! keepalived in a router's namespace, configured like the L3 agent does: VRRP (RFC 3768)
//! decides which instance has the router's addresses.
//!
//! Source: `neutron/agent/linux/keepalived.py` and `neutron/conf/agent/l3/ha.py`. The agent's
//! programs that watch for state changes are left out.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Duration;

use testbed::{Host, Privileges, Process, Processes};

use super::Net;
use crate::unsupported::{Supported, Unsupported, find_program};
use crate::{Capabilities, Result};

/// The program and its Debian package.
const PROGRAM: &str = "keepalived";
const CONFIGURATION: &str = "/run/keepalived.conf";
/// Time limit for the first router. It waits for three advertisement intervals (`advert_int`, 2
/// s) without a rival, plus its skew: 8 s.
const LIMIT: Duration = Duration::from_secs(60);

/// Checks whether it is installed and this process may run it.
pub(crate) fn probe(machine: &Capabilities) -> Supported {
    machine.program(PROGRAM, PROGRAM)?;
    // VRRP uses raw sockets.
    if machine.privileges() != Privileges::Root {
        return Err(Unsupported::without_root("keepalived needs root", "run as root"));
    }
    Ok(())
}

/// Starts it in a router's namespace.
pub(crate) fn start(tree: &Processes, router: &Host, nets: &[Net]) -> Result<Process> {
    let text = configuration(nets);
    tree.inside(router, || std::fs::write(CONFIGURATION, text))?
        .map_err(|error| sys::Error::io("write", CONFIGURATION, &error))?;
    // If it was removed since the probe, starting it fails with its name.
    let mut command = Command::new(find_program(PROGRAM).unwrap_or_else(|| PROGRAM.into()));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    // In the foreground, with log messages on the console, which Process captures.
    command.args(["-n", "-l", "-P", "-f", CONFIGURATION]);
    command.args(["-p", "/run/keepalived.pid", "-r", "/run/keepalived-vrrp.pid"]);
    tree.start_as(&format!("keepalived in {}", router.name()), router, &mut command)
}

/// Waits until a router has its addresses on all of `nets`.
pub(crate) fn wait_for_addresses(router: &Host, nets: &[Net], daemon: &mut Process) -> Result<()> {
    testbed::poll(&format!("the addresses of {}", router.name()), LIMIT, || {
        daemon.check()?;
        let own = router.netlink().addresses()?;
        let missing = nets.iter().map(|net| IpAddr::V4(net.router()));
        let missing = missing.into_iter().find(|ip| own.iter().all(|own| own.address != *ip));
        Ok(missing.map_or(Ok(()), |ip| Err(format!("{ip} is missing\n{}", daemon.last_lines()))))
    })?;
    daemon.forget_output();
    Ok(())
}

/// Waits until keepalived is in the backup state.
pub(crate) fn wait_for_backup(router: &Host, daemon: &mut Process) -> Result<()> {
    testbed::poll(&format!("keepalived in {}", router.name()), LIMIT, || {
        daemon.check()?;
        let said = daemon.output();
        Ok(if said.contains("Entering BACKUP STATE") { Ok(()) } else { Err(said) })
    })?;
    daemon.forget_output();
    Ok(())
}

fn configuration(nets: &[Net]) -> String {
    let interface = Net::Ha.router_device();
    // The primary address is unique and never changes.
    let primary = Ipv4Addr::new(169, 254, 0, 1);
    let mut text = format!(
        "global_defs {{
    notification_email_from neutron@openstack.local
    router_id neutron
}}
vrrp_instance VR_1 {{
    state BACKUP
    interface {interface}
    virtual_router_id 1
    priority 50
    garp_master_delay 60
    nopreempt
    advert_int 2
    track_interface {{
        {interface}
    }}
    virtual_ipaddress {{
        {primary}/24 dev {interface}
    }}
    virtual_ipaddress_excluded {{
"
    );
    for net in nets {
        // Writing to a string never fails.
        let _ = writeln!(text, "        {}/24 dev {} no_track", net.router(), net.router_device());
    }
    text + "    }\n}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_s_address_moves_with_the_router() {
        let text = configuration(&[Net::One, Net::Two]);
        assert!(text.contains("        10.2.0.1/24 dev qr-net2 no_track\n"), "{text}");
    }
}
