//! Translated (NAT) forms of wanted flows, from conntrack.

use netstate::connection::{Entry, connections};
use netstate::conntrack::NF_CONNTRACK_COUNT;
use sys::netns::NetNs;

use crate::filter::FlowPattern;

/// Adds to `found` both forms of each translated connection of a namespace if one of them is
/// wanted. If conntrack cannot be read, it adds nothing: the kernel does not have it.
pub(crate) fn add_translated(netns: &NetNs, wanted: &[FlowPattern], found: &mut Vec<FlowPattern>) {
    let mut add = |entry: &Entry| {
        let answers = entry.reply.reversed();
        // The connection is not translated (NAT).
        if answers == entry.original {
            return;
        }
        let protocol = entry.original.protocol;
        let both = [entry.original, answers].map(|way| (way.source, way.destination));
        let is_wanted = |(from, to)| wanted.iter().any(|flow| flow.is_of(from, to, protocol));
        if both.iter().copied().any(is_wanted) {
            let patterns = both.map(|(from, to)| FlowPattern::exactly(from, to, protocol));
            found.extend(
                patterns
                    .into_iter()
                    .filter(|pattern| !wanted.contains(pattern) && !found.contains(pattern))
                    .collect::<Vec<_>>(),
            );
        }
    };
    let read = netns.run(|| {
        let mut entries = Vec::new();
        // A dump walks all buckets of one table for all namespaces, which takes tens of ms. Skip it
        // if there are no entries.
        if is_without_connections() {
            return Ok(entries);
        }
        connections(|entry| entries.push(entry.clone())).map(|()| entries)
    });
    if let Ok(Ok(entries)) = read {
        entries.iter().for_each(&mut add);
    }
}

/// Returns whether conntrack has no entries in the calling thread's namespace.
fn is_without_connections() -> bool {
    std::fs::read_to_string(NF_CONNTRACK_COUNT).is_ok_and(|count| count.trim() == "0")
}
