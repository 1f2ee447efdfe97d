//! Verdicts on flows: the directions of connections in which packet filters pass every packet.
//!
//! The BPF programs report established flows without a verdict. A thread looks up the connection in
//! conntrack, checks where the slow path passed packets of both directions, and evaluates the rules
//! for both; for datagrams, only for the reported direction. If everything agrees it writes
//! verdicts, tagged with the number of the state they depend on. The reconciler changes that number
//! when the state changes, so a late verdict is void.

mod caretaker;
mod judge;
mod renewal;
mod route;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netstate::connection::{self, Connections};

use crate::Result;
use crate::lock::lock;
use crate::model::Basis;
use crate::programs::FlowMaps;
use crate::status::FlowsStatus;
pub use caretaker::{Caretaker, CaretakerWatch};
pub(crate) use judge::{Denied, judge};
use renewal::{renew, take_over};

/// Interval at which copied windows are expected.
const SOON: Duration = Duration::from_millis(2);
/// Interval at which the windows of ended connections are forgotten, and a share of the time that
/// this may take.
const CLEAN: Duration = Duration::from_secs(5);
const SHARE: u32 = 50;
/// Interval between checks for the stop flag.
const TURN: Duration = Duration::from_millis(100);
/// Maximum number of verdicts per turn. Further flows wait.
const MOST: u32 = 500;
/// Delay before a flow that the rules denied is evaluated again.
const LATER: Duration = Duration::from_secs(5);
/// Maximum number of distinct reasons in the status report.
const REASONS: usize = 32;

/// State shared by the verdict thread and the reconciler.
#[derive(Default)]
pub(crate) struct Verdicts {
    /// State that verdicts depend on.
    pub(crate) basis: Mutex<Arc<Basis>>,
    pub(crate) status: Mutex<FlowsStatus>,
}

/// Gives verdicts until `stop` is set. The calling thread is in the NICs' namespace.
pub(crate) fn run(
    mut maps: FlowMaps,
    verdicts: &Verdicts,
    mut caretaker: Option<CaretakerWatch>,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<()> {
    let connections = Connections::open()?;
    let (mut given, mut began) = (0, Instant::now());
    let mut cleaned = (Instant::now(), Duration::ZERO);
    let mut has_taken_over = false;
    while !stop.load(Ordering::Acquire) {
        let within = if maps.windows.is_pending() { SOON } else { TURN };
        let asked = maps.asked(within);
        follow(&mut maps, &connections)?;
        if caretaker.take_if(|caretaker| caretaker.has_ended()).is_some() {
            tracing::warn!(
                "the caretaker was killed: TCP connections through packet filters take the slow path \
                 until the next start"
            );
            lock(&verdicts.status).unguarded = true;
            maps.windows.admit_none();
            leave(&mut maps, &connections)?;
        }
        // Without rules there is no need to ask conntrack, which might load its modules.
        if !has_taken_over && lock(&verdicts.basis).number != 0 {
            take_over(&connections);
            has_taken_over = true;
        }
        if maps.windows.len() > 0 && cleaned.0.elapsed() > CLEAN.max(SHARE * cleaned.1) {
            let began = Instant::now();
            clean(&mut maps, &connections)?;
            cleaned = (Instant::now(), began.elapsed());
        }
        for key in asked {
            if began.elapsed() >= TURN {
                (given, began) = (0, Instant::now());
            }
            if given == MOST {
                // Skip the rest: flows that still need a verdict are reported again.
                break;
            }
            given += 1;
            let basis = lock(&verdicts.basis).clone();
            let asked_at = Instant::now();
            match judge(&basis, &connections, &mut maps, &key) {
                Ok(judged) => match maps.admit(&judged) {
                    Ok(()) => lock(&verdicts.status).admitted += 1,
                    // A full map of this type may lack room for a moment (ENOMEM). A verdict for
                    // one direction alone is harmless.
                    Err(error) => {
                        tracing::debug!(
                            "cannot write a verdict, the flow takes the slow path: {error}"
                        );
                        maps.ask_soon(&key);
                    }
                },
                Err(denied) => {
                    // The flow passes no tunnel, the connection is not established yet, or by
                    // chance no packet was recorded at one of the places.
                    if denied.is_by_rules() {
                        maps.ask_later(&key, LATER);
                    } else {
                        maps.ask_soon(&key);
                    }
                    note(&mut lock(&verdicts.status), &denied);
                }
            }
            let spent = u64::try_from(asked_at.elapsed().as_micros()).unwrap_or(0);
            lock(&verdicts.status).spent_us += spent;
        }
    }
    leave(&mut maps, &connections)
}

/// Leaves all connections to conntrack. Its windows of them are outdated, so it begins with new ones.
/// A program that finds an entry without the liberal flag leaves its packets to the slow path.
fn leave(maps: &mut FlowMaps, connections: &Connections) -> Result<()> {
    for original in maps.windows.all() {
        // Otherwise it is gone, or conntrack tracks the windows itself.
        if let Ok(Some(entry)) = connections.get(&original)
            && entry.original == original
            && entry.is_marked
        {
            renew(connections, &original);
        }
        maps.windows.free(&original)?;
    }
    Ok(())
}

/// Tells conntrack about connections that have begun to bypass it, and about resets. Leaves
/// connections to conntrack whose windows it has taken from a new handshake.
fn follow(maps: &mut FlowMaps, connections: &Connections) -> Result<()> {
    // A connection that conntrack no longer has needs nothing.
    for original in maps.windows.copied()? {
        if let Err(error) = connections.make_liberal(&original) {
            tracing::debug!("a connection stays on the slow path: {error}");
        }
    }
    for tuple in maps.resets() {
        if let Err(error) = connections.close(&tuple) {
            tracing::debug!("cannot close conntrack's entry of a reset connection: {error}");
        }
    }
    for tuple in maps.synced() {
        // Conntrack has begun anew only if it has reset the flags of the side that sent the SYN.
        // Otherwise the windows remain in force. Linux since 5.19 leaves the flag of the other side.
        let Ok(Some(entry)) = connections.get(&tuple) else { continue };
        if entry.liberal[0] {
            continue;
        }
        match connections.make_strict(&entry.original) {
            Ok(()) => maps.windows.free(&entry.original)?,
            Err(error) => tracing::debug!("cannot leave a connection to conntrack: {error}"),
        }
    }
    Ok(())
}

/// Forgets the windows of connections that have ended.
fn clean(maps: &mut FlowMaps, connections: &Connections) -> Result<()> {
    let mut entries = HashSet::new();
    connection::connections(|entry| {
        entries.insert(entry.original);
    })?;
    maps.windows.keep(&entries, |original| matches!(connections.get(original), Ok(None)))
}

/// Counts a denial. Distinct reasons are limited; further ones are counted as `others`.
fn note(status: &mut FlowsStatus, denied: &Denied) {
    // The status lists rules; other reasons are counted only.
    if !denied.is_by_rules() {
        return;
    }
    status.denied += 1;
    let (reason, reasons) = (denied.to_string(), &mut status.reasons);
    let is_room = reasons.len() < REASONS || reasons.contains_key(&reason);
    *reasons.entry(if is_room { reason } else { "others".to_owned() }).or_default() += 1;
}
