//! Packet selection for `trace` and `watch`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use clap::Args;
use netstate::Netlink;
use netstate::namespace::discover;
use observe::{Expression, Filter, FlowPattern};
use sys::netns::NetNs;

use crate::exit::usage;
use crate::lab_socket;
use crate::named_netns::netns;

/// Maximum length of a device name in bytes: `IFNAMSIZ` without the final NUL.
const DEVICE_BYTES: usize = 15;

/// The options that select packets. A packet must match all of them.
#[derive(Debug, Args)]
pub struct PacketFilter {
    /// Only packets of this flow, in both directions; may be repeated
    ///
    /// FLOW is `FROM -> TO` or one endpoint: `ADDRESS[/PREFIX][:PORT]`, `[IPV6]:PORT` or `*`,
    /// optionally followed by `/tcp`, `/udp`, `/icmp` or `/icmpv6`. Inner or outer addresses match.
    #[arg(long, value_name = "FLOW")]
    pub flow: Vec<String>,
    /// Only packets that match a tcpdump expression, by inner or outer headers
    ///
    /// See pcap-filter(7). libpcap compiles the expression for Ethernet, and it runs in the kernel.
    /// With `--flow`, packets must match both.
    #[arg(long = "filter", value_name = "EXPRESSION")]
    pub expression: Option<String>,
    /// Only in these namespaces: names, process IDs or paths
    #[arg(long, default_value = "all", value_name = "all|NETNS,…")]
    pub netns: String,
    /// Only at devices with this name
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Only in tunnels with this identifier: VXLAN or Geneve VNI, GRE key
    #[arg(long, value_name = "VNI")]
    pub vni: Option<u32>,
}

impl PacketFilter {
    /// Returns the namespaces of `--netns`. An empty list means all.
    ///
    /// # Errors
    /// A usage error if a name is not a namespace.
    pub fn namespaces(&self) -> anyhow::Result<Vec<NetNs>> {
        match self.netns.as_str() {
            "all" => Ok(Vec::new()),
            some => some.split(',').map(|text| netns("--netns", Some(text))).collect(),
        }
    }

    /// Checks that a namespace has the device of `--device`. A device that is created later would be
    /// a typing error more often than not.
    ///
    /// # Errors
    /// A usage error that names the device.
    pub fn check_device(&self) -> anyhow::Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        let mut namespaces = self.namespaces()?;
        if namespaces.is_empty() {
            let machine = discover()?;
            // Without a look at all of them, nothing is certain.
            if !machine.left_out.is_empty() {
                return Ok(());
            }
            namespaces.extend(machine.namespaces.into_values().map(|found| found.netns));
        }
        for netns in &namespaces {
            match netns.run(|| Netlink::open().and_then(|netlink| netlink.links())) {
                Ok(Ok(links)) if links.iter().all(|link| link.name != *device) => {}
                // It is there, or cannot be read.
                _ => return Ok(()),
            }
        }
        let of = if self.netns == "all" { "of this machine" } else { "of --netns" };
        Err(usage("--device", format!("{device:?}: no namespace {of} has this device")))
    }

    /// Builds the filter for the BPF programs.
    ///
    /// # Errors
    /// A usage error that names the argument.
    pub fn parse(&self) -> anyhow::Result<Filter> {
        let flows = self.flow.iter().map(|text| text.parse::<FlowPattern>());
        let flows = flows.collect::<Result<Vec<_>, _>>().map_err(|e| usage("--flow", e))?;
        // The BPF programs compare each packet with all of them: the number is a constant there.
        if flows.len() > Filter::MOST_FLOWS {
            let most = Filter::MOST_FLOWS;
            return Err(usage("--flow", format!("{} flows, expected at most {most}", flows.len())));
        }
        let inode = |netns: NetNs| {
            u32::try_from(netns.inode()).context("an inode number of a namespace has 32 bits")
        };
        let netns = self.namespaces()?.into_iter().map(inode).collect::<anyhow::Result<_>>()?;
        if let Some(device) = &self.device
            && !(1..=DEVICE_BYTES).contains(&device.len())
        {
            let problem = format!("{device:?}: expected 1 to {DEVICE_BYTES} bytes");
            return Err(usage("--device", problem));
        }
        let expression = self.expression.as_deref().map(Expression::compile).transpose();
        let expression = expression.map_err(|error| usage("--filter", error))?;
        let (vni, device) = (self.vni, self.device.clone());
        Ok(Filter { flows, vni, device, netns, expression, ..Filter::default() })
    }
}

/// Returns the hosts of the running testbeds, by the inode of their namespace.
pub fn hosts() -> BTreeMap<u32, String> {
    // Names only make output readable: if no testbed answers, devices and inodes stand for hosts.
    let standing = lab_socket::all().unwrap_or_default();
    let named = standing.iter().flat_map(|testbed| &testbed.hosts).filter_map(|host| {
        let netns = NetNs::open(Path::new(&host.netns)).ok()?;
        Some((u32::try_from(netns.inode()).ok()?, host.name.clone()))
    });
    named.collect()
}
