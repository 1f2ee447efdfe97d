//! OV048: drops of a queueing discipline increase.

use std::collections::BTreeMap;

use netstate::qdisc::Qdisc;
use netstate::tc_filter::{Effect, Filter};
use settings::Change;
use settings::command::{inside, quote};

use super::shaper_burst::is_too_small;
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::finding::Finding;
use crate::host::Namespace;
use crate::view::DeviceKey;

pub(super) const CHECK: Check = Check {
    code: "OV048",
    title: "A queueing discipline drops packets",
    severity: Severity::Warn,
    explanation: "A queueing discipline dropped packets between the two readings. Either the \
        device sends more slowly than packets arrive, or the discipline shapes traffic on purpose. \
        TCP learns its rate from drops; UDP loses the packets. Drops of ingress and clsact come \
        from filters attached there: an action, a BPF program, or a redirect to a device that is down \
        or has no reader. They are named by device, priority (pref) and handle. If a device at the end \
        of a redirect is down, the fix sets it up. doctor does not know what a filter or a rate is \
        for, so it changes neither: it prints commands that delete a filter and restore it, for a BPF \
        program by a pin, and for another filter only its owner can make it again; or that double the \
        rate of a tbf.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let Some(pair) = outcome.moving(namespace, &namespace.qdiscs) else { continue };
        for after in &pair.after {
            let before = pair.before.iter().find(|before| {
                (before.link, before.handle, &before.kind)
                    == (after.link, after.handle, &after.kind)
            });
            // A discipline set between the readings has no first reading.
            let Some(before) = before else { continue };
            // The kernel's counter has 32 bits, and wraps (`struct gnet_stats_queue`).
            let dropped = after.drops.wrapping_sub(before.drops);
            let place = DeviceKey { namespace: at, index: after.link };
            let Some(spot) = view.spot(place).filter(|_| dropped > 0) else { continue };
            // OV077 reports it with its cause.
            if after.shaper.is_some_and(|shaper| is_too_small(shaper, spot.interface.mtu)) {
                continue;
            }
            let is_filter = ["ingress", "clsact"].contains(&after.kind.as_str());
            let policers = namespace.policers.get().map_or(&[][..], |pair| pair.after.as_slice());
            // OV101 reports it with its cause.
            if is_filter && policers.iter().any(|policer| policer.link == after.link) {
                continue;
            }
            let sent = spot.moved().map_or(0, |moved| moved.tx_packets);
            let dropped = u64::from(dropped);
            let is_lost = |filter: &&Filter| {
                let Effect::Redirects(to) = filter.effect else { return false };
                let to = view.spot(DeviceKey { namespace: at, index: to });
                to.is_none_or(|to| !to.interface.up || !to.interface.carrier)
            };
            let named = if is_filter { filters(namespace, after.link) } else { Vec::new() };
            let finding = CHECK
                .on(spot)
                .evidence(
                    match is_filter {
                        true => format!(
                            "filters of {} (tc filter show dev {} ingress, egress) dropped \
                                 +{dropped}",
                            after.kind,
                            spot.name()
                        ),
                        false => format!("{} dropped +{dropped}", after.kind),
                    },
                    "TCA_STATS2",
                )
                .cost(Cost::of_packets(dropped, sent.saturating_add(dropped), "packets"))
                .confidence(Confidence::Medium);
            let severity = match named.iter().any(is_lost) {
                true => Severity::Error,
                false => CHECK.severity,
            };
            let finding = finding.severity(severity);
            // All packets of such a filter are lost.
            let finding = match severity {
                Severity::Error => finding.cost(Cost::estimated(1.0, "packets of the filter")),
                _ => finding,
            };
            let finding = match (named.iter().copied().find(is_lost), &named[..]) {
                (Some(filter), _) | (None, &[filter]) => filter_fix(view, spot, filter, finding),
                // One of several drops, which no counter tells.
                (None, [_, ..]) => finding,
                (None, []) => rate_fix(spot, after, finding),
            };
            outcome.add(named.into_iter().fold(finding, |finding, filter| {
                finding.evidence(words(view, at, spot.name(), filter), "RTM_GETTFILTER")
            }));
        }
    }
}

/// Filters of a link that dropped or took packets between the readings; without any, those with a
/// program, which has no counters.
fn filters(namespace: &Namespace, link: u32) -> Vec<&Filter> {
    /// Filters that are named.
    const SHOWN: usize = 3;
    let Some(pair) = namespace.filters.get() else { return Vec::new() };
    let here = || pair.after.iter().filter(|filter| filter.link == link);
    let of_link = pair.before.iter().filter(|filter| filter.link == link);
    let key = |filter: &Filter| (filter.egress, filter.pref, filter.handle);
    let before: BTreeMap<_, _> =
        of_link.map(|filter| (key(filter), (filter.packets, filter.drops))).collect();
    let has_moved = |after: &&Filter| {
        before.get(&key(after)).is_some_and(|before| *before != (after.packets, after.drops))
    };
    let mut all: Vec<&Filter> = here().filter(has_moved).collect();
    if all.is_empty() {
        all = here().filter(|filter| filter.effect == Effect::Program).collect();
    }
    all.truncate(SHOWN);
    all
}

/// Sets the target of a redirect up, or prints commands that delete a filter.
fn filter_fix(
    view: &View<'_>,
    device: DeviceRef<'_>,
    filter: &Filter,
    finding: Finding,
) -> Finding {
    if let Effect::Redirects(to) = filter.effect {
        let to = view.spot(DeviceKey { namespace: device.place.namespace, index: to });
        if let Some(to) = to.filter(|to| !to.interface.up) {
            return finding.set(Change::up(to), "it may have been set down on purpose");
        }
    }
    let name = quote(device.name());
    let hook = if filter.egress { "egress" } else { "ingress" };
    let at = format!("dev {name} {hook} pref {} handle {:#x} bpf", filter.pref, filter.handle);
    let path = device.namespace.path.as_deref();
    let risk = "only if nobody needs the filter: its owner (a network plugin, an agent) may attach it \
                again, and is the right place for the change";
    match filter.program {
        Some(id) => {
            let pin = format!("/sys/fs/bpf/overlane-{id}");
            let delete = inside(path, &format!("tc filter del {at}"));
            let add =
                inside(path, &format!("tc filter add {at} direct-action object-pinned {pin}"));
            finding.by_hand(
                format!("bpftool prog pin id {id} {pin} && {delete}"),
                risk,
                format!("{add} && rm {pin}"),
            )
        }
        None => {
            let (kind, pref, handle) = (quote(&filter.kind), filter.pref, handle(filter));
            let delete =
                format!("tc filter del dev {name} {hook} pref {pref} handle {handle} {kind}");
            finding.by_hand(
                inside(path, &delete),
                risk,
                "not possible: no command prints a filter as it was added, so its owner must add it \
                 again"
                    .to_owned(),
            )
        }
    }
}

/// Commands that double the rate of a token bucket.
fn rate_fix(device: DeviceRef<'_>, qdisc: &Qdisc, finding: Finding) -> Finding {
    let all = device.namespace.qdiscs.get().map_or(&[][..], |pair| pair.after.as_slice());
    let is_other = |other: &Qdisc| {
        let is_filter = ["ingress", "clsact"].contains(&other.kind.as_str());
        other.link == qdisc.link && other.handle != qdisc.handle && !is_filter
    };
    // Below a class of another one, the command would be about the wrong one.
    let Some(shaper) = qdisc.shaper.filter(|_| !all.iter().any(is_other)) else { return finding };
    let set = |rate: u64| {
        let (name, bits) = (quote(device.name()), rate.saturating_mul(8));
        let command = format!(
            "tc qdisc change dev {name} root tbf rate {bits}bit burst {} limit {}",
            shaper.burst, shaper.limit
        );
        inside(device.namespace.path.as_deref(), &command)
    };
    finding.by_hand(
        set(shaper.rate.saturating_mul(2)),
        "only if the limit is not meant: the tenant then takes twice as much. The program that set \
         the rate may set it again",
        set(shaper.rate),
    )
}

/// The handle of a filter as `tc` writes it.
fn handle(filter: &Filter) -> String {
    match filter.kind.as_str() {
        // Hash table, bucket and node (`TC_U32_NODE` of linux/pkt_cls.h).
        "u32" => {
            let number = filter.handle;
            format!("{:x}:{:x}:{:x}", number >> 20, number >> 12 & 0xff, number & 0xfff)
        }
        _ => format!("{:#x}", filter.handle),
    }
}

/// A filter as `tc` names it.
fn words(view: &View<'_>, namespace: usize, device: &str, filter: &Filter) -> String {
    let hook = if filter.egress { "egress" } else { "ingress" };
    let handle = handle(filter);
    let name = filter.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    let program = filter.program.map_or_else(String::new, |id| format!(" (BPF program {id})"));
    let effect = match filter.effect {
        Effect::Drops => format!("drops: {} so far", filter.packets),
        Effect::Program => "the program decides".to_owned(),
        Effect::Redirects(link) => match view.spot(DeviceKey { namespace, index: link }) {
            Some(to) if !to.interface.up => format!("redirects to {}, which is down", to.name()),
            Some(to) if !to.interface.carrier => {
                format!("redirects to {}, which has no reader or carrier", to.name())
            }
            Some(to) => format!("redirects to {}", to.name()),
            None => format!("redirects to a device that does not exist (index {link})"),
        },
    };
    format!(
        "{device} {hook} pref {} handle {handle} {}{name}{program}: {effect}",
        filter.pref, filter.kind
    )
}
