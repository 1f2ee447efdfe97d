//! Rules in the form that network policy plug-ins write.

use std::collections::HashSet;
use std::time::Instant;

use super::Choices;
use super::bed::{Bed, Key, address, sh};
use super::judge::{Flip, Flips};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A set of denied addresses, evaluated for each packet, as Calico and Cilium use sets.
    NftSet,
    /// A chain for each pod, reached from FORWARD, before the rule that accepts established
    /// connections (like kube-router).
    Iptables,
    /// Established connections are accepted first, so that rules apply to first packets (like
    /// kube-proxy and most firewalls).
    FirstPackets,
}

impl Style {
    pub const ALL: [Style; 3] = [Style::NftSet, Style::Iptables, Style::FirstPackets];

    /// Installs rules that deny nothing.
    pub fn install(self, bed: &Bed) {
        let script = match self {
            Style::NftSet => "nft 'table inet policies {
                set denied { type ipv4_addr . ipv4_addr . inet_proto; }
                chain forward { type filter hook forward priority filter; policy accept;
                    ip saddr . ip daddr . meta l4proto @denied drop
                    ct state established,related accept
                    ct state invalid drop
                }
            }'"
            .to_owned(),
            Style::FirstPackets => {
                let all: Vec<String> = Key::all().map(element).collect();
                format!(
                    "nft -f - <<END
                    table inet policies {{
                        set allowed {{ type ipv4_addr . ipv4_addr . inet_proto; elements = {{ {} }} }}
                        chain forward {{ type filter hook forward priority filter; policy drop;
                            ct state established,related accept
                            ip saddr . ip daddr . meta l4proto @allowed accept
                        }}
                    }}\nEND\n",
                    all.join(", ")
                )
            }
            Style::Iptables => {
                let pods = 0..bed.pods.len();
                let chains: String =
                    pods.clone().map(|pod| format!(":POD-FW-{pod} - [0:0]\n")).collect();
                let jumps: String = pods
                    .map(|pod| {
                        let (to, comment) =
                            (address(pod), "-m comment --comment \"rule to jump traffic to POD\"");
                        format!("-A POLICY -d {to}/32 {comment} -j POD-FW-{pod}\n")
                    })
                    .collect();
                restore(&format!(
                    ":POLICY - [0:0]\n{chains}-A FORWARD -m comment --comment \"policies\" -j POLICY\n\
                     -A FORWARD -m conntrack --ctstate INVALID -j DROP\n\
                     -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
                     -A FORWARD -s 10.244.0.0/16 -m comment --comment \"flanneld forward\" -j ACCEPT\n{jumps}"
                ))
            }
        };
        bed.hosts.iter().for_each(|host| sh(host, &script));
    }

    pub fn remove(self, bed: &Bed) {
        let script = match self {
            Style::Iptables => "nft delete table ip filter",
            Style::NftSet | Style::FirstPackets => "nft delete table inet policies",
        };
        bed.hosts.iter().for_each(|host| sh(host, script));
    }

    /// Whether rules apply to first packets only.
    pub fn spares_established(self) -> bool {
        self == Style::FirstPackets
    }

    /// Allows some denied keys and denies others, in both beds, and records the times.
    pub fn flip(
        self,
        beds: &[Bed; 2],
        keys: &[Key],
        choices: &mut Choices,
        flips: &mut [Flips; 2],
    ) {
        let mut chosen = HashSet::new();
        for _ in 0..=choices.below(6) {
            chosen.insert(keys[choices.below(keys.len())]);
        }
        for (host, deny) in [(0, true), (0, false), (1, true), (1, false)] {
            let is_here = |key: &Key| key.host() == host && flips[0].denies(*key) != deny;
            let of: Vec<Key> = chosen.iter().copied().filter(is_here).collect();
            if of.is_empty() {
                continue;
            }
            chosen.retain(|key| !of.contains(key));
            for (bed, flips) in beds.iter().zip(flips.iter_mut()) {
                let start = Instant::now();
                self.set(bed, host, &of, deny);
                let flip = Flip { start, end: Instant::now(), deny };
                of.iter().for_each(|key| flips.add(*key, flip));
            }
        }
    }

    /// Denies or allows keys whose rules are at this host.
    pub fn set(self, bed: &Bed, host: usize, keys: &[Key], deny: bool) {
        sh(&bed.hosts[host], &self.script(keys, deny));
    }

    fn script(self, keys: &[Key], deny: bool) -> String {
        let elements = || keys.iter().copied().map(element).collect::<Vec<_>>().join(", ");
        match self {
            Style::NftSet | Style::FirstPackets => {
                let (set, adds) = match self {
                    Style::NftSet => ("denied", deny),
                    _ => ("allowed", !deny),
                };
                let verb = if adds { "add" } else { "delete" };
                format!("nft '{verb} element inet policies {set} {{ {} }}'", elements())
            }
            Style::Iptables => {
                let verb = if deny { "-I" } else { "-D" };
                let rules = keys.iter().map(|key| {
                    let (from, to, protocol) =
                        (address(key.from), address(key.to), key.protocol.name());
                    format!(
                        "{verb} POD-FW-{} -s {from}/32 -d {to}/32 -p {protocol} -j DROP\n",
                        key.to
                    )
                });
                restore(&rules.collect::<String>())
            }
        }
    }
}

/// Lines of the filter table, in one call.
fn restore(lines: &str) -> String {
    format!("iptables-nft-restore --noflush <<'END'\n*filter\n{lines}COMMIT\nEND\n")
}

fn element(key: Key) -> String {
    format!("{} . {} . {}", address(key.from), address(key.to), key.protocol.name())
}
