//! Reads all rules of a namespace, consistently from one generation.

use std::sync::Arc;

use netstate::netfilter::raw::Nftables;
use nix::errno::Errno;

use crate::decode::{Message, NEWSET};
use crate::model::Ruleset;
use crate::wire::each;

// `NFT_MSG_GET…`, in the order of the requests.
const GETTABLE: u16 = 1;
const GETCHAIN: u16 = 4;
pub(crate) const GETRULE: u16 = 7;
const GETSET: u16 = 10;
pub(crate) const GETSETELEM: u16 = 13;
/// Attempts to read a consistent generation.
const ATTEMPTS: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a request, or its answer could not be parsed.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// The rules changed during every attempt.
    #[error("read nftables: rules changed during each of {ATTEMPTS} attempts")]
    Changing,
}

/// Reads the rules of the calling thread's namespace.
///
/// # Errors
/// If the kernel refuses, or the rules change during every attempt.
pub fn read() -> Result<Ruleset, Error> {
    read_by(&mut Nftables::open()?)
}

/// Reads the rules of a namespace.
///
/// # Errors
/// As [`read`].
pub fn read_by(nftables: &mut Nftables) -> Result<Ruleset, Error> {
    let (generation, messages) = messages(nftables)?;
    Ok(Ruleset { generation, ..Ruleset::from_messages(&messages) })
}

/// Returns the rules of a namespace. Reuses the known rules if their generation is current.
///
/// # Errors
/// As [`read`].
pub fn refresh(nftables: &mut Nftables, known: &Arc<Ruleset>) -> Result<Arc<Ruleset>, Error> {
    // On errors, read the rules, which reports the error.
    if !is_behind(nftables, known).unwrap_or(true) {
        return Ok(known.clone());
    }
    let new = read_by(nftables)?;
    // Keep the known value if the rules are equal, so that comparing pointers suffices.
    Ok(if new == **known { known.clone() } else { Arc::new(new) })
}

/// Whether the namespace's rules have another generation.
///
/// # Errors
/// If the kernel refuses.
pub fn is_behind(nftables: &mut Nftables, known: &Ruleset) -> Result<bool, Error> {
    match nftables.generation() {
        Ok(generation) => Ok(generation != known.generation),
        Err(error) if is_absent(&error) => Ok(known.generation != 0),
        Err(error) => Err(error.into()),
    }
}

/// Returns the generation and all its messages. A kernel without nftables has generation 0 and no
/// messages.
///
/// # Errors
/// As [`read`].
pub fn messages(nftables: &mut Nftables) -> Result<(u32, Vec<Message>), Error> {
    for _ in 0..ATTEMPTS {
        let before = match nftables.generation() {
            Ok(generation) => generation,
            Err(error) if is_absent(&error) => return Ok((0, Vec::new())),
            Err(error) => return Err(error.into()),
        };
        match all(nftables) {
            Ok(messages) if nftables.generation()? == before => return Ok((before, messages)),
            // The rules changed during the read: try again.
            Ok(_) => {}
            // A set was removed meanwhile, or each attempt of a dump was interrupted.
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            Err(netstate::Error::Answer { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Changing)
}

/// Whether the error means that the kernel has no nftables.
fn is_absent(error: &netstate::Error) -> bool {
    matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EPROTONOSUPPORT))
}

fn all(nftables: &mut Nftables) -> Result<Vec<Message>, netstate::Error> {
    let mut messages = Vec::new();
    let mut ask = |what, family, attributes: &[u8], object| {
        nftables.objects(what, family, attributes, object, |kind, payload| {
            messages.push(Message { kind, payload: payload.to_vec() });
        })
    };
    ask(GETTABLE, 0, &[], "nftables tables")?;
    ask(GETCHAIN, 0, &[], "nftables chains")?;
    ask(GETSET, 0, &[], "nftables sets")?;
    ask(GETRULE, 0, &[], "nftables rules")?;
    let sets: Vec<(u8, Vec<u8>)> =
        messages.iter().filter(|message| message.kind == NEWSET).filter_map(question).collect();
    for (family, attributes) in sets {
        nftables.objects(
            GETSETELEM,
            family,
            &attributes,
            "nftables elements",
            |kind, payload| {
                messages.push(Message { kind, payload: payload.to_vec() });
            },
        )?;
    }
    Ok(messages)
}

/// Returns the attributes of a request for a set's elements: table and name. `NFTA_SET_TABLE`
/// equals `NFTA_SET_ELEM_LIST_TABLE`, and so on.
fn question(set: &Message) -> Option<(u8, Vec<u8>)> {
    let mut attributes = Vec::new();
    for (kind, value) in each(set.payload.get(4..)?).ok()? {
        if kind == 1 || kind == 2 {
            attributes.extend(((4 + value.len()) as u16).to_ne_bytes());
            attributes.extend(kind.to_ne_bytes());
            attributes.extend(value);
            attributes.resize(attributes.len().next_multiple_of(4), 0);
        }
    }
    Some((*set.payload.first()?, attributes))
}
