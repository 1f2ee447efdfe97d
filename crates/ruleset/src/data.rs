//! Values and verdicts in elements and expressions (`NFTA_DATA_*`).

use crate::model::{Action, Value};
use crate::wire::{Fields, UnsupportedContent};

/// Parses `NFTA_DATA_*`: a value or a verdict. `chain` resolves names of chains.
pub(crate) fn data(
    bytes: &[u8],
    chain: impl Fn(&str) -> Option<usize>,
) -> Result<Value, UnsupportedContent> {
    let fields = Fields::new(bytes, &[1, 2])?;
    match (fields.get(1), fields.get(2)) {
        (Some(value), None) => Ok(Value::Data(value.to_vec())),
        (None, Some(verdict)) => Ok(Value::Verdict(action(verdict, chain)?)),
        // Both or none: ambiguous.
        _ => Err("neither a value nor a verdict".to_owned()),
    }
}

fn action(
    bytes: &[u8],
    chain: impl Fn(&str) -> Option<usize>,
) -> Result<Action, UnsupportedContent> {
    let fields = Fields::new(bytes, &[1, 2, 3])?;
    let code = fields.need_number(1)?.cast_signed();
    let to = || {
        let name = fields.text(2);
        chain(&name).ok_or_else(|| format!("jump to unlisted chain {name}"))
    };
    Ok(match code {
        0 => Action::Drop,
        1 => Action::Accept,
        -1 => Action::Continue,
        -2 => Action::Break,
        -3 => Action::Jump(to()?),
        -4 => Action::Goto(to()?),
        -5 => Action::Return,
        // NF_QUEUE with the queue number in the upper bits.
        code if code > 0 && code & 0xff == 3 => Action::Queue,
        // A verdict of a newer kernel.
        code => return Err(format!("verdict {code}")),
    })
}
