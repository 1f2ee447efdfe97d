//! Asks the packet filter of each namespace about the packets that overlays need.

use ruleset::{
    Cause, Compared, Connection, Flow, Hook, Nftables, Place, Ruleset, State, Step, Translation,
    Verdict,
};

use super::questions::{Listeners, Question, questions, tracked};
use super::{Subject, translations};
use crate::host::{Filtered, LongChain, Namespace, Passage, PassageKind, Reading, Translations};

/// Most chains of a namespace whose rules for translation are read: kube-proxy has several for each
/// service, and reading tens of thousands takes seconds.
const MOST_CHAINS: usize = 2_000;
/// Reason why the rules of some namespaces are not read.
pub(crate) const OF_ANOTHER: &str = "packet filters of another user's namespace are not read";
/// Evaluates the rules of each namespace that has any and that overlays depend on.
pub(super) fn read(subjects: &[Subject], namespaces: &mut [Namespace]) {
    let mut listeners = Listeners::new(subjects);
    for (at, subject) in subjects.iter().enumerate().take(namespaces.len()) {
        let (passages, translations) = passages(&mut listeners, subject, namespaces, at);
        namespaces[at].passages = passages;
        namespaces[at].translations = translations;
    }
}

fn passages(
    listeners: &mut Listeners<'_>,
    subject: &Subject,
    namespaces: &[Namespace],
    at: usize,
) -> (Reading<Vec<Passage>>, Reading<Translations>) {
    let none = || (Reading::Read(Vec::new()), Reading::Read(Translations::default()));
    let unread = |reason: String| (Reading::Unread(reason.clone()), Reading::Unread(reason));
    match &namespaces[at].chains {
        Reading::Unread(reason) => return unread(reason.clone()),
        // Without chains every packet passes. Chains for ARP are not among them.
        Reading::Read(chains) if chains.is_empty() && !sees_arp(subject, namespaces, at) => {
            return none();
        }
        Reading::Read(_) => {}
    }
    let questions = questions(listeners, namespaces, at);
    // No overlay depends on the rules: there may be many of them in the namespace of each pod.
    if questions.is_empty() {
        return none();
    }
    // A user could make any number of rules.
    if subject.is_untrusted {
        return unread(OF_ANOTHER.to_owned());
    }
    let here = &namespaces[at];
    let read = subject.netns.run(|| rules().map(|read| (read, translations::stalled(here))));
    match read.map_err(|error| error.to_string()).and_then(|read| read) {
        Ok(((rules, translations), stalled)) => {
            let mut repeated = Vec::new();
            let tenants = questions
                .iter()
                .filter(|one| one.passage.kind == PassageKind::Outside && translations.is_some());
            let mut translated: Vec<Passage> = tenants
                .map(|one| translations::of_tenant(&rules, &one.passage, &one.flow, &one.path))
                .collect();
            translated.extend(match &translations {
                Some(known) => questions
                    .iter()
                    .filter_map(|one| {
                        translations::of_tunnel(
                            &rules,
                            known,
                            here,
                            &one.passage,
                            &one.flow,
                            &one.path,
                        )
                    })
                    .collect(),
                None => Vec::new(),
            });
            let ask = |one| answer(&rules, one, &mut repeated);
            let mut passages: Vec<Passage> = questions.into_iter().map(ask).collect();
            passages.extend(translated);
            route_marked(subject, &mut passages);
            let translations = match translations {
                Some(known) => Reading::Read(translations::destinations(
                    known,
                    stalled,
                    rules.rejected_services(),
                )),
                None => Reading::Unread(format!("more than {MOST_CHAINS} chains")),
            };
            (Reading::Read(passages), translations)
        }
        Err(reason) => unread(reason),
    }
}

/// Whether the namespace of a tunnel's underlay has chains for ARP.
fn sees_arp(subject: &Subject, namespaces: &[Namespace], at: usize) -> bool {
    let mut tunnels = namespaces.iter().flat_map(|namespace| &namespace.tunnels);
    let is_underlay = tunnels.any(|tunnel| tunnel.underlay == namespaces[at].inode);
    let read = || subject.netns.run(netstate::netfilter::has_arp_chains);
    is_underlay && read().is_ok_and(|read| read.unwrap_or(false))
}

/// Asks the kernel for the route of forwarded packets that the rules mark.
fn route_marked(subject: &Subject, passages: &mut [Passage]) {
    let mut marked: Vec<&mut Passage> = passages
        .iter_mut()
        .filter(|one| one.mark != 0 && one.kind == PassageKind::Forward)
        .collect();
    // Most hosts mark nothing.
    if marked.is_empty() {
        return;
    }
    let routed = subject.netns.run(|| {
        let netlink = netstate::Netlink::open()?;
        let route = |one: &&mut Passage| netlink.routed((one.from, one.to), one.input, one.mark);
        Ok::<_, netstate::Error>(marked.iter().map(route).collect::<Vec<_>>())
    });
    // Without an answer nothing is known about them.
    let Ok(Ok(routed)) = routed else { return };
    for (passage, routed) in marked.iter_mut().zip(routed) {
        passage.routed = Some(Reading::from_result(routed));
    }
}

/// Reads the rules of the calling thread's namespace, those of iptables-legacy included, and rules
/// for translation, if there are not too many chains.
fn rules() -> Result<(Ruleset, Option<Vec<Translation>>), String> {
    let nftables = Nftables::open().map_err(|error| error.to_string());
    let rules = nftables.and_then(|mut nftables| {
        ruleset::read_translating(&mut nftables, MOST_CHAINS).map_err(|error| error.to_string())
    });
    let (mut rules, mut translations) = rules?;
    rules.join_legacy().map_err(|error| error.to_string())?;
    if let Some(known) = &mut translations {
        known.extend(ruleset::legacy_translations().map_err(|error| error.to_string())?);
    }
    Ok((rules, translations))
}

/// Evaluates the rules. `repeated` has the counts of chains that were met before.
fn answer(rules: &Ruleset, question: Question, repeated: &mut Vec<(Place, usize)>) -> Passage {
    let Question { mut passage, flow, path } = question;
    let (answer, longest) = rules.compared(&flow, &path);
    // Routing reads the mark after prerouting.
    let before_routing = path.iter().position(|step| step.hook == Hook::Prerouting);
    passage.mark = before_routing.and_then(|at| answer.marks.get(at)).copied().unwrap_or_default();
    passage.verdict = match answer.verdict {
        Verdict::Accept => Filtered::Passed,
        Verdict::Drop { at } => {
            let family = at.family_name().to_owned();
            let handle = at.handle;
            // Whether the rule drops for the sake of the input or output device.
            let names = |input| {
                let path = elsewhere(&path, input);
                handle.is_some()
                    && rules.verdict(&flow, &path).verdict != Verdict::Drop { at: at.clone() }
            };
            let is_meant = match passage.kind {
                // Isolated networks have a rule that names their bridge.
                PassageKind::Outside | PassageKind::OutsideReply => names(true) || names(false),
                PassageKind::Forward => {
                    names(true) && names(false) || is_one_sided(rules, &flow, &path)
                }
                _ => names(true) && names(false),
            };
            let Place { table, chain, .. } = at;
            Filtered::Dropped { family, table, chain, handle, is_meant }
        }
        Verdict::Depends { at, cause: Cause::Time | Cause::Counting | Cause::Unknown, what } => {
            let (family, handle) = (at.family_name().to_owned(), at.handle);
            Filtered::Depends { family, table: at.table, chain: at.chain, handle, on: what }
        }
        Verdict::NotUnderstood { at: Some(at), what } => {
            let (family, handle) = (at.family_name().to_owned(), at.handle);
            Filtered::Depends { family, table: at.table, chain: at.chain, handle, on: what }
        }
        Verdict::Depends { .. } | Verdict::NotUnderstood { at: None, .. } => Filtered::Undecided,
    };
    passage.longest = longest.map(|Compared { chain, rules: compared }| {
        let known = repeated.iter().find(|(known, _)| *known == chain).map(|(_, count)| *count);
        let count = known.unwrap_or_else(|| {
            let count = rules.repeated(&chain);
            repeated.push((chain.clone(), count));
            count
        });
        LongChain {
            family: chain.family_name().to_owned(),
            table: chain.table,
            chain: chain.chain,
            rules: compared as u64,
            repeated: count as u64,
        }
    });
    passage
}

/// Whether the rules accept connections from the other side, and their answers on this path.
fn is_one_sided(rules: &Ruleset, flow: &Flow, path: &[Step]) -> bool {
    let accepts = |flow: &Flow, path: &[Step]| rules.verdict(flow, path).verdict == Verdict::Accept;
    let mut answers = flow.clone();
    answers.connection = Some(Connection { is_reply: true, ..tracked(State::Established) });
    let mut back = flow.clone();
    (back.tuple, back.other) = (flow.other, flow.tuple);
    let mut way_back = path.to_vec();
    for step in &mut way_back {
        std::mem::swap(&mut step.input, &mut step.output);
    }
    // Prerouting has an input device only, and postrouting an output device.
    let (Some(first), Some(last)) = (path.first(), path.last()) else { return false };
    let (entry, exit) = (last.output.clone(), first.input.clone());
    for step in &mut way_back {
        match step.hook {
            Hook::Prerouting => (step.input, step.output) = (entry.clone(), None),
            Hook::Postrouting => (step.input, step.output) = (None, exit.clone()),
            _ => {}
        }
    }
    accepts(&answers, path) && accepts(&back, &way_back)
}

/// The same path with another input or output device, which no rule names.
fn elsewhere(path: &[Step], input: bool) -> Vec<Step> {
    let mut path = path.to_vec();
    for step in &mut path {
        let device = if input { &mut step.input } else { &mut step.output };
        if let Some(device) = device {
            // No device has a slash in its name.
            *device = ruleset::Interface { index: u32::MAX, name: "/".to_owned() };
        }
    }
    path
}
