//! Policers of received packets, in the filters that [`crate::tc_filter`] reads.

use serde::{Deserialize, Serialize};

use crate::dump::{attribute, attributes, text};
use crate::qdisc::bytes_of_ticks;

// linux/rtnetlink.h.
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
const TCA_STATS: u16 = 3;
/// Length of `struct tcmsg`.
pub(crate) const HEADER: usize = 20;
// linux/pkt_cls.h.
pub(crate) const TCA_ACT_KIND: u16 = 1;
pub(crate) const TCA_ACT_OPTIONS: u16 = 2;
pub(crate) const TCA_ACT_STATS: u16 = 4;
const TCA_POLICE_TBF: u16 = 1;
const TCA_POLICE_RESULT: u16 = 5;
const TCA_POLICE_RATE64: u16 = 8;
/// `TCA_STATS_QUEUE` (linux/gen_stats.h).
pub(crate) const TCA_STATS_QUEUE: u16 = 3;

/// A policer for received packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policer {
    /// Index of the link.
    pub link: u32,
    /// Number of the action, unique among the policers of a namespace.
    pub index: u32,
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that may pass at once.
    pub burst: u64,
    /// Longest packet or segment that passes, bytes.
    pub mtu: u32,
    /// Verdict on packets above the rate (`TC_ACT_*`): 2 is a drop.
    pub exceed: i32,
    /// Verdict on the others: 0 passes them.
    pub conform: i32,
    /// Packets above the rate; wraps at 32 bits.
    pub drops: u32,
}

/// Attributes of a classifier that hold its actions and its policer without an action, which is the
/// older form.
pub(crate) fn places(classifier: &str) -> Option<(u16, Option<u16>)> {
    Some(match classifier {
        "u32" => (7, Some(6)),
        "basic" => (3, Some(4)),
        "fw" => (4, Some(2)),
        "bpf" => (1, Some(2)),
        "flower" => (3, None),
        "matchall" => (2, None),
        // Actions of other filters are at unknown places.
        _ => return None,
    })
}

/// Returns the policers of a filter. Policers in classifiers other than `u32`, `flower`,
/// `matchall`, `basic`, `fw` and `bpf` are left out.
pub(crate) fn of_filter(link: u32, message: &[u8]) -> Vec<Policer> {
    let payload = message.get(HEADER..).unwrap_or_default();
    let kind = attribute(payload, TCA_KIND).map(text).unwrap_or_default();
    let (Some((actions, plain)), Some(options)) = (places(&kind), attribute(payload, TCA_OPTIONS))
    else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (_, action) in attribute(options, actions).into_iter().flat_map(attributes) {
        // Other actions do not limit a rate.
        if attribute(action, TCA_ACT_KIND).map(text).as_deref() != Some("police") {
            continue;
        }
        // `struct gnet_stats_queue`: length, backlog, drops.
        let stats = attribute(action, TCA_ACT_STATS);
        let queue = stats.and_then(|stats| attribute(stats, TCA_STATS_QUEUE));
        let drops = queue.and_then(|queue| word(queue, 8)).unwrap_or_default();
        let parameters = attribute(action, TCA_ACT_OPTIONS);
        all.extend(parameters.and_then(|parameters| policer(link, parameters, drops)));
    }
    if let Some(parameters) = plain.and_then(|plain| attribute(options, plain)) {
        // `struct tc_stats`: 8 bytes, packets, drops.
        let stats = attribute(payload, TCA_STATS);
        let drops = stats.and_then(|stats| word(stats, 12)).unwrap_or_default();
        all.extend(policer(link, parameters, drops));
    }
    all
}

/// Parses a policer's attributes: `struct tc_police` is index, action, limit, burst, MTU, and
/// `struct tc_ratespec` with the rate in the last 4 of its 12 bytes.
fn policer(link: u32, parameters: &[u8], drops: u32) -> Option<Policer> {
    let police = attribute(parameters, TCA_POLICE_TBF)?;
    let rate64 = attribute(parameters, TCA_POLICE_RATE64).and_then(|bytes| bytes.first_chunk());
    let rate = match rate64 {
        Some(rate) => u64::from_ne_bytes(*rate),
        None => word(police, 28)?.into(),
    };
    let result = attribute(parameters, TCA_POLICE_RESULT).and_then(|bytes| word(bytes, 0));
    Some(Policer {
        link,
        index: word(police, 0)?,
        rate,
        burst: bytes_of_ticks(word(police, 12)?, rate),
        mtu: word(police, 16)?,
        exceed: word(police, 4)?.cast_signed(),
        conform: result.unwrap_or_default().cast_signed(),
        drops,
    })
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::to_attribute;

    fn words(all: &[u32]) -> Vec<u8> {
        all.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// A policer of 1 MB/s whose burst lasts 10 ms.
    fn parameters() -> Vec<u8> {
        let ticks = 10_000_000 / 64;
        let police = words(&[7, 2, 0, ticks, 2047, 0, 0, 1_000_000, 0, 0, 0, 1, 1, 0]);
        to_attribute(TCA_POLICE_TBF, &police)
    }

    fn filter(kind: &str, options: &[u8], others: &[u8]) -> Vec<u8> {
        let kind = to_attribute(TCA_KIND, &[kind.as_bytes(), &[0]].concat());
        [vec![0; HEADER], kind, to_attribute(TCA_OPTIONS, options), others.to_vec()].concat()
    }

    fn expected(drops: u32) -> Policer {
        Policer {
            link: 3,
            index: 7,
            rate: 1_000_000,
            burst: 10_000,
            mtu: 2047,
            exceed: 2,
            conform: 0,
            drops,
        }
    }

    #[test]
    fn policers_are_read_from_actions_and_from_the_older_form() {
        let queue = to_attribute(TCA_STATS_QUEUE, &words(&[0, 0, 9, 0, 0]));
        let action = [
            to_attribute(TCA_ACT_KIND, b"police\0"),
            to_attribute(TCA_ACT_OPTIONS, &parameters()),
            to_attribute(TCA_ACT_STATS, &queue),
        ];
        let other = to_attribute(1, &to_attribute(TCA_ACT_KIND, b"gact\0"));
        let actions = [other, to_attribute(2, &action.concat())].concat();
        let matchall = filter("matchall", &to_attribute(2, &actions), &[]);
        assert_eq!(of_filter(3, &matchall), [expected(9)]);
        let stats = to_attribute(TCA_STATS, &words(&[0, 0, 20, 5, 0]));
        let plain = filter("u32", &to_attribute(6, &parameters()), &stats);
        assert_eq!(of_filter(3, &plain), [expected(5)]);
        assert_eq!(of_filter(3, &filter("cgroup", &to_attribute(2, &actions), &[])), []);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
            cut in 0..300_usize,
        ) {
            let _ = of_filter(1, &bytes);
            let mut whole = filter("u32", &to_attribute(6, &parameters()), &bytes);
            whole.truncate(cut);
            let _ = of_filter(1, &whole);
            bytes.splice(0..0, [0; HEADER]);
            let _ = of_filter(1, &bytes);
        }
    }
}
