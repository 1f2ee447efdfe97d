//! `nat-proxy`: a published port by the real `docker-proxy`, which terminates the client's
//! connection in the host and opens another to the tenant.

use std::process::Command;
use std::time::Duration;

use netstate::Hop;
use testbed::{Host, NIC, Process, Processes, Wire};

use super::nat::{TENANT_B, masqueraded, probe};
use crate::unsupported::find_program;
use crate::{Alternative, Capabilities, Label, Mode, Network, PORT, Params, Result, Unsupported};

/// A published port served by `docker-proxy`, which terminates TCP connections.
pub struct NatProxy;

const PROGRAM: &str = "docker-proxy";

impl Mode for NatProxy {
    fn label(&self) -> Label {
        Label::new(
            "nat-proxy",
            "tenant - veth - bridge - masquerade - wire - docker-proxy - bridge - veth - tenant",
        )
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        probe(machine)?;
        machine.program(PROGRAM, "docker.io").map(drop)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = masqueraded(params)?;
        let tree = Processes::new()?;
        let programs = ["tcp", "udp"]
            .into_iter()
            .map(|protocol| proxy(&tree, &tenants.b, protocol))
            .collect::<Result<Vec<_>>>()?;
        let middle = vec![Hop::tx("a", NIC), Hop::rx("b", NIC), Hop::process("b", PROGRAM)];
        Ok(tenants
            .network(TENANT_B, params.mtu, middle)
            .published_at(Wire::B)
            .with_processes(tree, programs))
    }

    fn alternatives(&self, _: &Network) -> &'static [Alternative] {
        &[Alternative {
            mode: "nat",
            advice: "publish ports by NAT instead of docker-proxy (Docker: \"userland-proxy\": false)",
        }]
    }
}

/// Starts a proxy and waits until it listens. It reports on descriptor 3: `0` and a line feed,
/// or `1` and the error (moby, `cmd/docker-proxy`). The shell redirects that descriptor to
/// the program's log.
fn proxy(tree: &Processes, host: &Host, protocol: &str) -> Result<Process> {
    // If it was removed since the probe, starting it fails with its name.
    let program = find_program(PROGRAM).unwrap_or_else(|| PROGRAM.into());
    let port = PORT.to_string();
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" 3>&1"])
        .arg(program)
        .args(["-proto", protocol, "-host-ip", &Wire::B.to_string(), "-host-port", &port])
        .args(["-container-ip", &TENANT_B.to_string(), "-container-port", &port]);
    let name = format!("{PROGRAM} ({protocol})");
    let mut process = tree.start_as(&name, host, &mut command)?;
    testbed::poll(&name, Duration::from_secs(10), || {
        process.check()?;
        let said = process.output();
        Ok(if said.lines().any(|line| line == "0") { Ok(()) } else { Err(said) })
    })?;
    process.forget_output();
    Ok(process)
}
