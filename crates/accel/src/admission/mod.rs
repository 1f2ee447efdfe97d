//! Verdicts on flows: which directions of connections packet filters let pass, whatever
//! packet of them comes.
//!
//! The programs tell of flows that last and have no verdict. A thread asks conntrack for the
//! connection, looks where the slow path let packets of both directions in and out, and
//! evaluates the rules for both; of datagrams, for the one direction that was asked about.
//! Only where all agree does it write verdicts, with the number of the state that they were
//! given by. The reconciler makes that number another when the state changes; so a verdict
//! that comes late is void already.

mod judge;
mod route;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netstate::connection::Connections;

use crate::Result;
use crate::lock::lock;
use crate::model::Basis;
use crate::programs::FlowMaps;
use crate::status::FlowsStatus;
pub(crate) use judge::{Held, judge};

/// Between two looks for the end.
const TURN: Duration = Duration::from_millis(100);
/// Verdicts in a turn; more flows wait for the next one.
const MOST: u32 = 500;
/// A flow that the rules keep slow is not asked about again in this time.
const LATER: Duration = Duration::from_secs(5);
/// Reasons that are told apart.
const REASONS: usize = 32;

/// What the thread and the reconciler both have.
#[derive(Default)]
pub(crate) struct Verdicts {
    /// What verdicts are given by.
    pub(crate) basis: Mutex<Arc<Basis>>,
    pub(crate) status: Mutex<FlowsStatus>,
}

/// Gives verdicts until `stop` says so. The calling thread is in the NICs' namespace.
///
/// # Errors
/// When maps or sockets cannot be opened.
pub(crate) fn run(
    mut maps: FlowMaps,
    verdicts: &Verdicts,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<()> {
    let connections = Connections::open()?;
    let (mut given, mut began) = (0, Instant::now());
    while !stop.load(Ordering::Acquire) {
        for key in maps.asked(TURN) {
            if began.elapsed() >= TURN {
                (given, began) = (0, Instant::now());
            }
            if given == MOST {
                // Whoever still wants one asks again.
                break;
            }
            given += 1;
            let basis = lock(&verdicts.basis).clone();
            let asked_at = Instant::now();
            match judge(&basis, &connections, &maps, &key) {
                Ok(judged) => match maps.admit(&judged) {
                    Ok(()) => lock(&verdicts.status).admitted += 1,
                    // A full map of this kind may have no room for a moment (ENOMEM); a
                    // verdict for one direction alone is none that is wrong.
                    Err(error) => {
                        tracing::debug!("a flow stays slow: {error}");
                        maps.ask_soon(&key);
                    }
                },
                Err(held) => {
                    // It does not go through a tunnel, or its connection is not that far, or
                    // by chance no packet of it was noted at one of the places.
                    if held.is_by_rules() {
                        maps.ask_later(&key, LATER);
                    } else {
                        maps.ask_soon(&key);
                    }
                    note(&mut lock(&verdicts.status), &held);
                }
            }
            let spent = u64::try_from(asked_at.elapsed().as_micros()).unwrap_or(0);
            lock(&verdicts.status).spent_us += spent;
        }
    }
    Ok(())
}

/// Counts what a flow was held back by; no more than some reasons are told apart.
fn note(status: &mut FlowsStatus, held: &Held) {
    if !held.is_by_rules() {
        return;
    }
    status.held += 1;
    let (reason, reasons) = (held.to_string(), &mut status.reasons);
    let is_room = reasons.len() < REASONS || reasons.contains_key(&reason);
    *reasons.entry(if is_room { reason } else { "others".to_owned() }).or_default() += 1;
}
