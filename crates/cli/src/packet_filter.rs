//! Which packets `trace` and `watch` look at.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use clap::Args;
use observe::{Expression, Filter, FlowPattern};
use sys::netns::NetNs;

use crate::exit::usage;
use crate::lab_socket;
use crate::named_netns::netns;

/// Bytes of a device's name, at most (`IFNAMSIZ`, less its zero).
const DEVICE_BYTES: usize = 15;

/// Which packets.
#[derive(Debug, Args)]
pub struct PacketFilter {
    /// Only packets of this flow, both directions, by inner or outer addresses; again for more
    ///
    /// `FROM -> TO`, or one end: `ADDRESS[/PREFIX][:PORT]`, `[IPV6]:PORT`, or `*`; with `/tcp`,
    /// `/udp`, `/icmp` or `/icmpv6` at the end.
    #[arg(long, value_name = "FLOW")]
    pub flow: Vec<String>,
    /// Only packets that this expression means, in tcpdump's syntax, by inner or outer headers
    ///
    /// As in pcap-filter(7), for Ethernet. It is compiled by libpcap and runs in the kernel. With
    /// `--flow` both must hold.
    #[arg(long = "filter", value_name = "EXPRESSION")]
    pub expression: Option<String>,
    /// Only in these network namespaces: names, process ids or paths
    #[arg(long, default_value = "all", value_name = "all|NETNS,…")]
    pub netns: String,
    /// Only at devices of this name
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Only in tunnels of this network identifier, of VXLAN, Geneve or as the key of GRE
    #[arg(long, value_name = "VNI")]
    pub vni: Option<u32>,
}

impl PacketFilter {
    /// The namespaces that were named; none: all.
    ///
    /// # Errors
    /// Usage, for what is no namespace.
    pub fn namespaces(&self) -> anyhow::Result<Vec<NetNs>> {
        match self.netns.as_str() {
            "all" => Ok(Vec::new()),
            some => some.split(',').map(|text| netns("--netns", Some(text))).collect(),
        }
    }

    /// As the programs take it.
    ///
    /// # Errors
    /// Usage, naming the argument.
    pub fn parse(&self) -> anyhow::Result<Filter> {
        let flows = self.flow.iter().map(|text| text.parse::<FlowPattern>());
        let flows = flows.collect::<Result<Vec<_>, _>>().map_err(|e| usage("--flow", e))?;
        if flows.len() > Filter::MOST_FLOWS {
            let most = Filter::MOST_FLOWS;
            return Err(usage("--flow", format!("{} flows, expected {most} at most", flows.len())));
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

/// Hosts of the standing testbeds, by the inode of their namespace.
pub fn hosts() -> BTreeMap<u32, String> {
    // Where sockets of testbeds cannot be asked, their hosts have other names.
    let standing = lab_socket::all().unwrap_or_default();
    let named = standing.iter().flat_map(|testbed| &testbed.hosts).filter_map(|host| {
        let netns = NetNs::open(Path::new(&host.netns)).ok()?;
        Some((u32::try_from(netns.inode()).ok()?, host.name.clone()))
    });
    named.collect()
}
