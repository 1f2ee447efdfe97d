//! Services whose connections a map rejects or drops, as kube-proxy does without endpoints.

use std::net::IpAddr;

use crate::flow::Place;
use crate::model::{Action, Expression, Ruleset, Shape, Value};
use crate::xt::Target;

/// A service whose connections a verdict map rejects or drops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedService {
    /// The map, in place of a chain.
    pub map: Place,
    /// Address of the service.
    pub to: IpAddr,
    /// `IPPROTO_*`.
    pub protocol: u8,
    pub port: u16,
}

impl Ruleset {
    /// Returns the elements of verdict maps by address, protocol and port that lead to a chain which
    /// rejects or drops all packets.
    pub fn rejected_services(&self) -> Vec<RejectedService> {
        let maps = self.sets.iter().filter(|set| set.shape == Shape::Keys && !set.name.is_empty());
        let mut all = Vec::new();
        for set in maps {
            for (key, value) in &set.elements.exact {
                let Value::Verdict(action) = value else { continue };
                // `ipv4_addr . inet_proto . inet_service`: each field fills whole words.
                let (to, rest): (IpAddr, &[u8]) = match key.len() {
                    12 => match key.split_first_chunk::<4>() {
                        Some((address, rest)) => ((*address).into(), rest),
                        None => continue,
                    },
                    24 => match key.split_first_chunk::<16>() {
                        Some((address, rest)) => ((*address).into(), rest),
                        None => continue,
                    },
                    _ => continue,
                };
                let &[protocol, 0, 0, 0, high, low, 0, 0] = rest else { continue };
                if self.rejects(*action) {
                    let map = Place {
                        family: set.family,
                        table: set.table.clone(),
                        chain: set.name.clone(),
                        handle: None,
                        is_legacy: false,
                    };
                    let port = u16::from_be_bytes([high, low]);
                    all.push(RejectedService { map, to, protocol, port });
                }
            }
        }
        // The elements are in no order.
        all.sort_by_key(|one| (one.to, one.protocol, one.port));
        all
    }

    /// Whether an action drops every packet: at once, or by the only rule of a chain.
    fn rejects(&self, action: Action) -> bool {
        let chain = match action {
            Action::Drop => return true,
            Action::Goto(chain) | Action::Jump(chain) => chain,
            _ => return false,
        };
        let rules = self.chains.get(chain).map_or(&[][..], |chain| &chain.rules);
        let first = rules.first().map_or(&[][..], |rule| &rule.expressions);
        let effect = first.iter().find(|expression| **expression != Expression::Nothing);
        matches!(
            effect,
            Some(
                Expression::Reject
                    | Expression::Verdict(Action::Drop)
                    | Expression::Target(Target::Reject)
            )
        )
    }
}
