//! Address translation in a namespace: rules that set destinations, connections that they have
//! changed, and rules that take a tunnel's packets.

use ruleset::{Cause, Flow, Hook, Place, Ruleset, Step, Translation, Verdict};

use crate::host::{
    Filtered, Namespace, Passage, PassageKind, RejectedService, Stalled, TranslationRule,
    Translations,
};

/// Most conntrack entries that are read, and connections without an answer that are kept.
const MOST_ENTRIES: u64 = 20_000;
const MOST_STALLED: usize = 100;

/// Rules that set destinations, and connections that nobody answers.
pub(super) fn destinations(
    known: Vec<Translation>,
    stalled: Result<Vec<Stalled>, String>,
    rejected: Vec<ruleset::RejectedService>,
) -> Translations {
    let all: Vec<Translation> = known.into_iter().filter(|one| !one.is_source).collect();
    // IPVS has no rules.
    let all_constant = all.iter().all(|one| one.to.is_some());
    let rules = all.into_iter().filter_map(|one| {
        let family = one.at.family_name().to_owned();
        let Place { table, chain, handle, .. } = one.at;
        Some(TranslationRule { family, table, chain, handle, to: one.to? })
    });
    let rules: Vec<TranslationRule> = rules.collect();
    let rejected = rejected.into_iter().map(|one| RejectedService {
        family: one.map.family_name().to_owned(),
        table: one.map.table,
        map: one.map.chain,
        to: one.to,
        protocol: one.protocol,
        port: one.port,
    });
    let (stalled, stalled_unread) = match stalled {
        Ok(stalled) => (Some(stalled), None),
        Err(reason) => (None, Some(reason)),
    };
    Translations { rules, all_constant, stalled, stalled_unread, rejected: rejected.collect() }
}

/// Connections of the calling thread's namespace whose destination was translated, and that nobody
/// has answered.
///
/// # Errors
/// There are too many to read, or the kernel refuses.
pub(super) fn stalled(here: &Namespace) -> Result<Vec<Stalled>, String> {
    /// `IPS_SEEN_REPLY`.
    const SEEN_REPLY: u32 = 2;
    // Without connection tracking nothing is translated.
    let count = here.conntrack.get().map_or(0, |pair| pair.before.count);
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > MOST_ENTRIES {
        return Err(format!("{count} connections are tracked; at most {MOST_ENTRIES} are read"));
    }
    let mut all = Vec::new();
    let read = netstate::connection::connections(|entry| {
        let (to, now) = (entry.original.destination, entry.reply.source.0);
        let is_open = entry.status & SEEN_REPLY == 0 && to.0 != now;
        if is_open && all.len() < MOST_STALLED {
            let from = entry.original.source.0;
            all.push(Stalled { protocol: entry.original.protocol, from, to, now });
        }
    });
    all.sort_unstable();
    all.dedup();
    read.map(|()| all).map_err(|error| error.to_string())
}

/// Whether rules give a tenant's packets another source on their way to the outside. The question has
/// an address of the outside, which rules for other networks do not name.
pub(super) fn of_tenant(rules: &Ruleset, passage: &Passage, flow: &Flow, path: &[Step]) -> Passage {
    let flow = Flow { asks_nat: true, any_address: None, ..flow.clone() };
    let path: Vec<Step> =
        path.iter().filter(|step| step.hook == Hook::Postrouting).cloned().collect();
    let verdict = match rules.verdict(&flow, &path).verdict {
        Verdict::Accept => Filtered::Passed,
        Verdict::Depends { at, cause: Cause::Effect, .. } => {
            let (family, handle) = (at.family_name().to_owned(), at.handle);
            let Place { table, chain, .. } = at;
            Filtered::Translated { family, table, chain, handle, to: None }
        }
        _ => Filtered::Undecided,
    };
    Passage { kind: PassageKind::OutsideSource, verdict, longest: None, ..passage.clone() }
}

/// Asks whether a rule for translation takes a tunnel's packets.
pub(super) fn of_tunnel(
    rules: &Ruleset,
    known: &[Translation],
    here: &Namespace,
    passage: &Passage,
    flow: &Flow,
    path: &[Step],
) -> Option<Passage> {
    let is_source = match passage.kind {
        PassageKind::TunnelOut => true,
        PassageKind::TunnelIn => false,
        _ => return None,
    };
    let flow = Flow { asks_nat: true, ..flow.clone() };
    let is_wanted = |step: &&Step| match is_source {
        true => step.hook == Hook::Postrouting,
        false => step.hook == Hook::Prerouting,
    };
    let path: Vec<Step> = path.iter().filter(is_wanted).cloned().collect();
    let Verdict::Depends { at, cause: Cause::Effect, .. } = rules.verdict(&flow, &path).verdict
    else {
        return None;
    };
    let one = known.iter().find(|one| one.at == at && one.is_source == is_source)?;
    // The address of the device is mostly the tunnel's own.
    let of_device = || {
        let mut addresses = here.addresses.get().into_iter().flatten();
        addresses.any(|known| known.link == passage.output && known.address == passage.from)
    };
    if one.to == Some(passage.from) || one.of_device && is_source && of_device() {
        return None;
    }
    let (family, handle) = (at.family_name().to_owned(), at.handle);
    let Place { table, chain, .. } = at;
    let verdict = Filtered::Translated { family, table, chain, handle, to: one.to };
    Some(Passage { verdict, longest: None, ..passage.clone() })
}
