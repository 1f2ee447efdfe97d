//! Decodes the expressions of a rule by name and attributes.

use crate::data::data;
use crate::model::{Expression, Header, Register, Value};
use crate::names::Names;
use crate::value::{Cause, Comparison, Doubt};
use crate::wire::{Fields, UnsupportedContent};
use crate::xt;

/// Size of all registers, bytes.
pub(crate) const REGISTERS: usize = 64;

/// Expressions that force the slow path, whatever their attributes.
pub const SLOW: [(&str, Cause); 21] = [
    ("limit", Cause::Counting),
    ("quota", Cause::Counting),
    ("connlimit", Cause::Counting),
    ("numgen", Cause::Time),
    ("log", Cause::Effect),
    ("queue", Cause::Effect),
    ("exthdr", Cause::Packet),
    ("rt", Cause::Packet),
    ("socket", Cause::Packet),
    ("osf", Cause::Packet),
    ("hash", Cause::Packet),
    ("inner", Cause::Packet),
    ("tunnel", Cause::Packet),
    ("xfrm", Cause::Packet),
    ("synproxy", Cause::Effect),
    ("tproxy", Cause::Effect),
    ("notrack", Cause::Effect),
    ("flow_offload", Cause::Effect),
    ("dup", Cause::Effect),
    ("fwd", Cause::Effect),
    ("secmark", Cause::Effect),
];

/// Decodes an expression (`NFTA_EXPR_*`) of a rule in a table.
pub(crate) fn decode(names: &Names, family: u8, table: &str, bytes: &[u8]) -> Expression {
    let inner = || -> Result<Expression, UnsupportedContent> {
        let fields = Fields::new(bytes, &[1, 2])?;
        let name = fields.text(1);
        let data = fields.get(2).unwrap_or_default();
        named(names, family, table, &name, data).map_err(|why| format!("{name}: {why}"))
    };
    inner().unwrap_or_else(Expression::UnsupportedContent)
}

fn named(
    names: &Names,
    family: u8,
    table: &str,
    name: &str,
    bytes: &[u8],
) -> Result<Expression, UnsupportedContent> {
    if let Some((name, cause)) = SLOW.iter().find(|(slow, _)| *slow == name) {
        return Ok(Expression::Slow(Doubt::new(*cause, name)));
    }
    let fields = |known: &[u16]| Fields::new(bytes, known);
    let find =
        |set: String| names.set(family, table, &set).ok_or_else(|| format!("unlisted set {set}"));
    Ok(match name {
        "dynset" => {
            let known: Vec<u16> = (1..=10).collect();
            Expression::Dynset { set: find(fields(&known)?.text(1))? }
        }
        // Packet and byte counts; time of the last packet.
        "counter" | "last" => Expression::Nothing,
        "meta" => {
            let fields = fields(&[1, 2, 3])?;
            let key = fields.need_number(2)?;
            match (fields.number(1)?, fields.number(3)?) {
                (Some(to), None) => Expression::Meta { key, to: register(to)? },
                // Without a destination register, the expression writes the field.
                (None, Some(from)) => Expression::MetaSet { key, from: register(from)? },
                _ => return Err("neither a source nor a destination register".to_owned()),
            }
        }
        "payload" => {
            // A source register means that the packet is rewritten.
            if fields(&[1, 2, 3, 4, 5, 6, 7, 8])?.get(5).is_some() {
                return Ok(Expression::Slow(Doubt::new(Cause::Effect, "payload set")));
            }
            let fields = fields(&[1, 2, 3, 4])?;
            let base = match fields.need_number(2)? {
                0 => Header::Link,
                1 => Header::Network,
                2 => Header::Transport,
                3 => Header::Inner,
                // A later kernel's base: the header is unknown.
                base => return Err(format!("base {base}")),
            };
            let length = fields.need_number(4)? as usize;
            let to = span(fields.need_number(1)?, length)?;
            Expression::Payload { base, offset: fields.need_number(3)? as usize, length, to }
        }
        "cmp" => {
            let fields = fields(&[1, 2, 3])?;
            let how = match fields.need_number(2)? {
                0 => Comparison::Equal,
                1 => Comparison::NotEqual,
                2 => Comparison::Less,
                3 => Comparison::LessOrEqual,
                4 => Comparison::Greater,
                5 => Comparison::GreaterOrEqual,
                // A later kernel's operation.
                how => return Err(format!("operation {how}")),
            };
            let with = value(fields.need(3)?)?;
            Expression::Compare { from: span(fields.need_number(1)?, with.len())?, how, with }
        }
        "range" => {
            let fields = fields(&[1, 2, 3, 4])?;
            let (least, most) = (value(fields.need(3)?)?, value(fields.need(4)?)?);
            // The kernel compares both bounds with the same register span.
            if least.len() != most.len() {
                return Err("bounds of different lengths".to_owned());
            }
            let inverted = inverted(fields.need_number(2)?)?;
            let from = span(fields.need_number(1)?, least.len())?;
            Expression::Range { from, inverted, least, most }
        }
        "bitwise" => {
            let fields = fields(&[1, 2, 3, 4, 5, 6, 7, 8])?;
            let operation = fields.number(6)?.unwrap_or(0);
            // Shifts and operations on two registers are not evaluated.
            if operation != 0 {
                return Err(format!("operation {operation}"));
            }
            let length = fields.need_number(3)? as usize;
            let (mask, xor) = (value(fields.need(4)?)?, value(fields.need(5)?)?);
            // The kernel refuses such an expression, so this is another format.
            if mask.len() != length || xor.len() != length {
                return Err("mask and value differ in length".to_owned());
            }
            let from = span(fields.need_number(1)?, length)?;
            Expression::MaskXor { from, to: span(fields.need_number(2)?, length)?, mask, xor }
        }
        "byteorder" => {
            let fields = fields(&[1, 2, 3, 4, 5])?;
            let (length, size) = (fields.need_number(4)? as usize, fields.need_number(5)? as usize);
            // The kernel refuses such an expression, so this is another format.
            if ![2, 4, 8].contains(&size) || !length.is_multiple_of(size) {
                return Err(format!("{length} bytes by {size}"));
            }
            let from = span(fields.need_number(1)?, length)?;
            let to = span(fields.need_number(2)?, length)?;
            Expression::ByteOrder { from, to, length, size }
        }
        "immediate" => {
            let fields = fields(&[1, 2])?;
            let to = fields.need_number(1)?;
            match data(fields.need(2)?, |name| names.chain(family, table, name))? {
                Value::Verdict(action) if to == 0 => Expression::Verdict(action),
                Value::Data(value) => Expression::Immediate { to: span(to, value.len())?, value },
                // A verdict has a register of its own.
                _ => return Err("verdict in place of a value".to_owned()),
            }
        }
        "lookup" => {
            let fields = fields(&[1, 2, 3, 4, 5])?;
            let set = find(fields.text(1))?;
            let from = register(fields.need_number(2)?)?;
            let inverted = inverted(fields.number(5)?.unwrap_or(0))?;
            match fields.number(3)? {
                // Register 0 is the verdict register.
                Some(0) if !inverted => Expression::VerdictMap { set, from },
                Some(0) => return Err("inverted map".to_owned()),
                Some(to) => Expression::Lookup { set, from, to: Some(register(to)?), inverted },
                None => Expression::Lookup { set, from, to: None, inverted },
            }
        }
        "ct" => {
            let fields = fields(&[1, 2, 3, 4])?;
            let key = fields.need_number(2)?;
            let direction = match fields.get(3) {
                None => None,
                Some([direction @ 0..=1]) => Some(*direction),
                Some(other) => return Err(format!("direction {other:?}")),
            };
            match (fields.number(1)?, fields.number(4)?) {
                (Some(to), None) => Expression::Ct { key, direction, to: register(to)? },
                (None, Some(from)) => Expression::CtSet { key, from: register(from)? },
                // The expression neither reads nor writes: another format.
                _ => return Err("neither a source nor a destination register".to_owned()),
            }
        }
        "fib" => {
            let fields = fields(&[1, 2, 3])?;
            let (result, flags) = (fields.need_number(2)?, fields.need_number(3)?);
            Expression::Fib { result, flags, to: register(fields.need_number(1)?)? }
        }
        "objref" => {
            let fields = fields(&[1, 2, 3, 4, 5])?;
            match fields.number(1)? {
                // NFT_OBJECT_COUNTER.
                Some(1) => Expression::Nothing,
                // Quotas, limits, helpers, timeouts, secmarks, synproxies.
                _ => Expression::Slow(Doubt::new(Cause::Counting, "objref")),
            }
        }
        "reject" => {
            fields(&[1, 2])?;
            Expression::Reject
        }
        // Only in NAT chains, which established connections do not pass.
        "nat" | "masq" | "redir" => Expression::Slow(Doubt::new(Cause::Effect, "nat")),
        "match" | "target" => {
            let fields = fields(&[1, 2, 3])?;
            let (extension, revision) = (fields.text(1), fields.need_number(2)?);
            let info = fields.get(3).unwrap_or_default();
            if name == "match" {
                Expression::Match(xt::matches(&extension, revision, info)?)
            } else {
                Expression::Target(xt::target(&extension, revision, info)?)
            }
        }
        // A rule with an unknown expression may do anything to the packet.
        _ => return Err("unknown expression".to_owned()),
    })
}

/// Returns the offset of a register (`enum nft_registers`).
pub(crate) fn register(number: u32) -> Result<Register, UnsupportedContent> {
    match number {
        1..=4 => Ok((number as usize - 1) * 16),
        8..=23 => Ok((number as usize - 8) * 4),
        number => Err(format!("register {number}")),
    }
}

/// Returns the offset of a register, after checking that a value of this length fits.
fn span(number: u32, length: usize) -> Result<Register, UnsupportedContent> {
    let at = register(number)?;
    // The registers overlap in memory: a longer value would be read from others.
    if length == 0 || length > REGISTERS - at {
        return Err(format!("{length} bytes in register {number}"));
    }
    Ok(at)
}

fn value(bytes: &[u8]) -> Result<Vec<u8>, UnsupportedContent> {
    match data(bytes, |_| None)? {
        Value::Data(value) => Ok(value),
        _ => Err("verdict in place of a value".to_owned()),
    }
}

/// Parses flags whose only bit inverts, or `NFT_RANGE_NEQ`.
fn inverted(flags: u32) -> Result<bool, UnsupportedContent> {
    match flags {
        0 => Ok(false),
        1 => Ok(true),
        flags => Err(format!("flags {flags:#x}")),
    }
}
