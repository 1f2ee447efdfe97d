//! Decides which packets may have arrived and which must have.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::bed::Key;
use super::rules::Style;
use super::traffic::{Kind, Received, Sent, Taken};

/// How long packets may pass after the call has returned: the fast path's bound.
pub const BOUND: Duration = Duration::from_millis(10);
/// How long a packet may take on a busy machine. A packet sent less than this before a rule forbids
/// it need not arrive.
pub const UNDER_WAY: Duration = Duration::from_millis(300);
/// Reported problems of each kind.
const TOLD: usize = 10;

/// A change of a rule: the start of the call, and its return.
#[derive(Debug, Clone, Copy)]
pub struct Flip {
    pub start: Instant,
    pub end: Instant,
    pub deny: bool,
}

/// The changes of each key, in order. At first all keys are allowed.
#[derive(Default)]
pub struct Flips(HashMap<Key, Vec<Flip>>);

impl Flips {
    pub fn add(&mut self, key: Key, flip: Flip) {
        self.0.entry(key).or_default().push(flip);
    }

    /// Whether the key is denied now.
    pub fn denies(&self, key: Key) -> bool {
        self.0.get(&key).and_then(|flips| flips.last()).is_some_and(|flip| flip.deny)
    }

    /// The last change that was certainly in force, and the next one.
    fn around(&self, key: Key, sent: Instant) -> Option<(Option<Flip>, Option<Flip>)> {
        let flips = self.0.get(&key).map_or(&[][..], Vec::as_slice);
        let next = flips.iter().position(|flip| flip.start >= sent).unwrap_or(flips.len());
        let last = next.checked_sub(1).map(|at| flips[at]);
        // Within the bound, the state is uncertain.
        let is_certain = last.is_none_or(|last| last.end + BOUND < sent);
        is_certain.then(|| (last, flips.get(next).copied()))
    }

    /// Whether it was forbidden when it was sent, and still when it arrived.
    fn forbids(&self, key: Key, sent: Instant, received: Instant) -> bool {
        let Some((Some(last), next)) = self.around(key, sent) else { return false };
        last.deny && next.is_none_or(|next| received < next.start)
    }

    /// Whether it was forbidden when it was sent.
    fn forbade(&self, key: Key, sent: Instant) -> bool {
        self.around(key, sent).is_some_and(|(last, _)| last.is_some_and(|last| last.deny))
    }

    /// Whether it was allowed when it was sent and long enough afterwards.
    fn allows(&self, key: Key, sent: Instant) -> bool {
        let Some((last, next)) = self.around(key, sent) else { return false };
        last.is_none_or(|last| !last.deny) && next.is_none_or(|next| sent + UNDER_WAY < next.start)
    }
}

/// Outcome of the packets of a round, or of all rounds.
#[derive(Default)]
pub struct Verdict {
    flips: usize,
    allowed: usize,
    forbidden: usize,
    undecided: usize,
    arrived: usize,
    /// Forbidden packets that arrived.
    pub late: Vec<String>,
    /// Allowed packets that were lost.
    pub lost: Vec<String>,
}

impl Verdict {
    pub fn add(&mut self, other: Verdict) {
        self.flips += other.flips;
        self.allowed += other.allowed;
        self.forbidden += other.forbidden;
        self.undecided += other.undecided;
        self.arrived += other.arrived;
    }

    /// Whether there were enough packets and changes for a meaningful result.
    pub fn is_of_use(&self) -> bool {
        self.flips > 50 && self.allowed > 500 && self.forbidden > 100 && self.arrived > 500
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} changes of rules; {} packets allowed and arrived, {} forbidden and lost, {} sent \
             about a change",
            self.flips, self.allowed, self.forbidden, self.undecided
        )
    }
}

/// Keys whose rules decide whether a packet arrives.
fn keys(style: Style, key: Key, kind: Kind) -> Vec<Key> {
    match kind {
        // Established in both directions long ago.
        Kind::Flow | Kind::Stream if style.spares_established() => vec![],
        // The answer shows that it arrived.
        Kind::Connection if !style.spares_established() => vec![key, key.back()],
        _ => vec![key],
    }
}

pub fn judge(style: Style, flips: &Flips, taken: Taken) -> Verdict {
    let Taken { sent, received } = taken;
    let mut verdict = Verdict {
        flips: flips.0.values().map(Vec::len).sum(),
        arrived: received.len(),
        ..Verdict::default()
    };
    let mut arrived = HashSet::new();
    for Received { id, key, kind, sent, at } in received {
        arrived.insert(id);
        for rule in keys(style, key, kind).into_iter().filter(|rule| flips.forbids(*rule, sent, at))
        {
            let last = flips.around(rule, sent).and_then(|(last, _)| last);
            let late = last.map_or(Duration::ZERO, |last| sent - last.end);
            verdict.late.push(format!(
                "{kind:?} {key:?}, sent {late:?} after the call that forbids {rule:?}, arrived"
            ));
        }
    }
    for Sent { id, key, kind, at } in sent {
        let rules = keys(style, key, kind);
        if rules.iter().any(|rule| flips.forbade(*rule, at)) {
            verdict.forbidden += 1;
        } else if rules.iter().all(|rule| flips.allows(*rule, at)) {
            verdict.allowed += 1;
            if !arrived.contains(&id) {
                verdict.lost.push(format!("{kind:?} {key:?}: allowed, and lost"));
            }
        } else {
            verdict.undecided += 1;
        }
    }
    verdict.late.truncate(TOLD);
    verdict.lost.truncate(TOLD);
    verdict
}
