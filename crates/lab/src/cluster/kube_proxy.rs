//! The real kube-proxy in a host.

use std::process::Command;
use std::time::Duration;

use testbed::{Host, Process, Processes};

use super::objects::last;
use super::{POD_NETWORK, program};
use crate::Result;

/// Time limit to write the rules of several thousand services.
const LIMIT: Duration = Duration::from_secs(300);
/// Interval between checks of the rules: listing thousands competes with the writer for CPU.
const BETWEEN: Duration = Duration::from_millis(300);

/// Proxy mode: the format of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyMode {
    Iptables,
    Nftables,
}

impl ProxyMode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ProxyMode::Iptables => "iptables",
            ProxyMode::Nftables => "nftables",
        }
    }
}

pub(crate) fn start(
    tree: &Processes,
    host: &Host,
    mode: ProxyMode,
    config: &str,
) -> Result<Process> {
    let mut command = program("kube-proxy");
    command
        .args(["--kubeconfig", config, "--hostname-override", host.name()])
        .args(["--proxy-mode", mode.name(), "--cluster-cidr", POD_NETWORK])
        // The conntrack table is the machine's: a test host must not change its size.
        .args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"])
        .arg("--conntrack-tcp-timeout-close-wait=0");
    tree.start_as(&format!("kube-proxy in {}", host.name()), host, &mut command)
}

/// Waits until the node has the rules of all services, with `others` beside the server's.
/// kube-proxy reads all services first and writes all rules in one transaction.
pub(crate) fn programmed(
    proxy: &mut Process,
    host: &Host,
    mode: ProxyMode,
    others: u32,
) -> Result<()> {
    let what = format!("kube-proxy's rules in {}", host.name());
    let address = format!("{}", last(others));
    let mut looked: Option<std::time::Instant> = None;
    testbed::poll(&what, LIMIT, || {
        proxy.check()?;
        // Too early for another listing.
        if looked.is_some_and(|at| at.elapsed() < BETWEEN) {
            return Ok(Err(proxy.last_lines()));
        }
        let mut show = match mode {
            ProxyMode::Iptables => {
                let mut save = Command::new("iptables-save");
                save.args(["-t", "nat"]);
                save
            }
            ProxyMode::Nftables => {
                let mut list = Command::new("nft");
                list.args(["list", "table", "ip", "kube-proxy"]);
                list
            }
        };
        // The table of nftables mode does not exist at first.
        let rules = host.run(&mut show).unwrap_or_default();
        looked = Some(std::time::Instant::now());
        let has = rules.split([' ', '/', '\n']).any(|word| word == address);
        Ok(if has { Ok(()) } else { Err(proxy.last_lines()) })
    })?;
    proxy.forget_output();
    Ok(())
}
