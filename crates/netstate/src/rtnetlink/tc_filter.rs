//! Traffic control filters of `ingress` and `clsact`: `tc -s filter show dev DEVICE ingress`.

use netlink_sys::protocols::NETLINK_ROUTE;
use serde::{Deserialize, Serialize};

use crate::dump::{Lists, attribute, attributes, text};
use crate::netlink::Result;
use crate::policer::{
    HEADER, Policer, TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_ACT_STATS, TCA_KIND, TCA_OPTIONS,
    TCA_STATS_QUEUE, of_filter, places, word,
};
use crate::qdisc::Qdisc;

// linux/rtnetlink.h.
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
/// Handle of a discipline `ingress`, and the parents of filters for received and sent packets at
/// `clsact` (linux/pkt_sched.h).
const INGRESS: u32 = 0xffff_0000;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
// linux/pkt_cls.h.
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
/// `TCA_BPF_FLAG_ACT_DIRECT`: the program's result is the verdict.
const ACT_DIRECT: u32 = 1;
/// `TCA_GACT_PARMS` and `TCA_MIRRED_PARMS`: both begin with index, capabilities and verdict.
const PARAMETERS: u16 = 2;
/// `TC_ACT_SHOT`.
const SHOT: u32 = 2;
/// `TCA_EGRESS_REDIR` and `TCA_INGRESS_REDIR` of linux/tc_act/tc_mirred.h.
const REDIRECTS: [u32; 2] = [1, 3];
/// `TCA_STATS_BASIC` (linux/gen_stats.h): bytes and packets.
const TCA_STATS_BASIC: u16 = 1;

/// A filter that drops packets or takes them to another device, or may do so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Index of the link.
    pub link: u32,
    /// It sees sent packets; else received ones.
    pub egress: bool,
    /// Priority, `pref` of `tc`.
    pub pref: u16,
    /// Handle, unique at its priority.
    pub handle: u32,
    /// Classifier: `bpf`, `flower`, `matchall`, `u32` …
    pub kind: String,
    /// Name of the BPF program.
    pub name: Option<String>,
    /// Number of the BPF program.
    pub program: Option<u32>,
    /// Its effect on packets.
    pub effect: Effect,
    /// Packets that its actions have seen; 0 for a program without actions. Wraps at 32 bits.
    pub packets: u32,
    /// Packets that its actions have dropped, also those that the other device refused. Wraps at 32
    /// bits.
    pub drops: u32,
}

/// Effect of a filter on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// An action drops them.
    Drops,
    /// An action takes them to the device with this index.
    Redirects(u32),
    /// A program decides.
    Program,
}

/// Filters of the links of a namespace.
#[derive(Debug, Default)]
pub struct Filters {
    /// Filters that drop packets or take them elsewhere. Filters that can only pass, mark or
    /// copy packets are left out.
    pub filters: Vec<Filter>,
    /// Policers of received packets.
    pub policers: Vec<Policer>,
}

/// Reads the filters of links with a discipline `ingress` or `clsact`, in the calling thread's
/// namespace.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn filters(qdiscs: &[Qdisc]) -> Result<Filters> {
    let mut all = Filters::default();
    let mut socket = None;
    for qdisc in qdiscs {
        let parents: &[(u32, bool)] = match qdisc.kind.as_str() {
            "ingress" => &[(INGRESS, false)],
            "clsact" => &[(CLSACT_INGRESS, false), (CLSACT_EGRESS, true)],
            // Filters of other disciplines choose a class.
            _ => continue,
        };
        let lists = match &mut socket {
            Some(lists) => lists,
            None => socket.insert(Lists::open(NETLINK_ROUTE, "filters")?),
        };
        for (parent, egress) in parents {
            let mut request = [0; HEADER];
            request[4..8].copy_from_slice(&qdisc.link.to_ne_bytes());
            request[12..16].copy_from_slice(&parent.to_ne_bytes());
            lists.dump((RTM_GETTFILTER, &request), "filters", |kind, message| {
                if kind != RTM_NEWTFILTER {
                    return;
                }
                all.filters.extend(filter(qdisc.link, *egress, message));
                if !egress {
                    all.policers.extend(of_filter(qdisc.link, message));
                }
            })?;
        }
    }
    // Several filters may share a policer.
    all.policers.sort_by_key(|policer| (policer.link, policer.index));
    all.policers.dedup();
    Ok(all)
}

fn filter(link: u32, egress: bool, message: &[u8]) -> Option<Filter> {
    // `struct tcmsg`: handle, parent, and info with the priority in its upper half.
    let (handle, info) = (word(message, 8)?, word(message, 16)?);
    let payload = message.get(HEADER..)?;
    let kind = attribute(payload, TCA_KIND).map(text)?;
    let options = attribute(payload, TCA_OPTIONS)?;
    let is_bpf = kind == "bpf";
    let of_bpf = |wanted| attribute(options, wanted).filter(|_| is_bpf);
    let is_direct = of_bpf(TCA_BPF_FLAGS).and_then(|value| word(value, 0)).unwrap_or_default();
    let mut filter = Filter {
        link,
        egress,
        pref: u16::try_from(info >> 16).ok()?,
        handle,
        name: of_bpf(TCA_BPF_NAME).map(text),
        program: of_bpf(TCA_BPF_ID).and_then(|value| word(value, 0)),
        effect: Effect::Program,
        packets: 0,
        drops: 0,
        kind,
    };
    let mut effect = (is_bpf && is_direct & ACT_DIRECT != 0).then_some(Effect::Program);
    let (actions, _) = places(&filter.kind)?;
    for (_, action) in attribute(options, actions).into_iter().flat_map(attributes) {
        let parameters = attribute(action, TCA_ACT_OPTIONS)
            .and_then(|options| attribute(options, PARAMETERS))
            .unwrap_or_default();
        let found = match attribute(action, TCA_ACT_KIND).map(text).as_deref() {
            Some("gact") if word(parameters, 8) == Some(SHOT) => Effect::Drops,
            // `struct tc_mirred`: `eaction` and the device follow the 20 common bytes.
            Some("mirred") if word(parameters, 20).is_some_and(|way| REDIRECTS.contains(&way)) => {
                Effect::Redirects(word(parameters, 24)?)
            }
            _ => continue,
        };
        effect = Some(found);
        let stats = attribute(action, TCA_ACT_STATS).unwrap_or_default();
        let count = |kind, at| attribute(stats, kind).and_then(|value| word(value, at));
        // `struct gnet_stats_basic` has 8 bytes before the packets, `gnet_stats_queue` drops third.
        filter.packets = count(TCA_STATS_BASIC, 8).unwrap_or_default();
        filter.drops = count(TCA_STATS_QUEUE, 8).unwrap_or_default();
    }
    filter.effect = effect?;
    Some(filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::to_attribute;

    fn words(all: &[u32]) -> Vec<u8> {
        all.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn message(kind: &str, options: &[u8]) -> Vec<u8> {
        let header = words(&[0, 3, 0x8000_0800, 0xffff_fff2, 49152 << 16 | 0x0300]);
        let kind = to_attribute(TCA_KIND, &[kind.as_bytes(), &[0]].concat());
        [header, kind, to_attribute(TCA_OPTIONS, options)].concat()
    }

    fn action(kind: &str, parameters: &[u32]) -> Vec<u8> {
        let kind = to_attribute(TCA_ACT_KIND, &[kind.as_bytes(), &[0]].concat());
        let options = to_attribute(TCA_ACT_OPTIONS, &to_attribute(PARAMETERS, &words(parameters)));
        let stats = [
            to_attribute(TCA_STATS_BASIC, &words(&[700, 0, 7])),
            to_attribute(TCA_STATS_QUEUE, &words(&[0, 0, 6, 0, 0])),
        ];
        to_attribute(1, &[kind, options, to_attribute(TCA_ACT_STATS, &stats.concat())].concat())
    }

    fn found(kind: &str, options: &[u8]) -> Option<(Effect, u32, u32)> {
        let filter = filter(3, false, &message(kind, options))?;
        assert_eq!((filter.pref, filter.handle), (49152, 0x8000_0800));
        Some((filter.effect, filter.packets, filter.drops))
    }

    #[test]
    fn filters_are_told_by_their_actions() {
        let shot = action("gact", &[1, 0, 2, 1, 1]);
        assert_eq!(found("u32", &to_attribute(7, &shot)), Some((Effect::Drops, 7, 6)));
        let pass = action("gact", &[1, 0, 0, 1, 1]);
        assert_eq!(found("u32", &to_attribute(7, &pass)), None);
        let redirect = action("mirred", &[1, 0, 4, 1, 1, 1, 9]);
        let redirected = found("matchall", &to_attribute(2, &redirect));
        assert_eq!(redirected, Some((Effect::Redirects(9), 7, 6)));
        let mirror = action("mirred", &[1, 0, 3, 1, 1, 2, 9]);
        assert_eq!(found("matchall", &to_attribute(2, &mirror)), None);
        // A hash table of u32 has no actions.
        assert_eq!(found("u32", &[]), None);
        assert_eq!(found("cgroup", &[]), None);
    }

    #[test]
    fn programs_are_named() {
        let direct = [
            to_attribute(TCA_BPF_NAME, b"d.o:[tc]\0"),
            to_attribute(TCA_BPF_FLAGS, &words(&[ACT_DIRECT])),
            to_attribute(TCA_BPF_ID, &words(&[77])),
        ];
        let filter = filter(3, true, &message("bpf", &direct.concat())).unwrap();
        assert_eq!(filter.name.as_deref(), Some("d.o:[tc]"));
        assert_eq!((filter.program, filter.effect), (Some(77), Effect::Program));
        assert!(filter.egress);
        // Without the flag a program only classifies.
        assert_eq!(found("bpf", &direct[0]), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
        ) {
            let _ = filter(1, false, &bytes);
            let _ = filter(1, false, &message("matchall", &to_attribute(2, &bytes)));
        }
    }
}
