//! Values and verdicts of elements and expressions (`NFTA_DATA_*`).

use crate::model::{Action, Value};
use crate::wire::{Fields, Odd};

/// `NFTA_DATA_*`: a value or a verdict.
pub(crate) fn data(told: &[u8], chain: impl Fn(&str) -> Option<usize>) -> Result<Value, Odd> {
    let fields = Fields::new(told, &[1, 2])?;
    match (fields.get(1), fields.get(2)) {
        (Some(value), None) => Ok(Value::Data(value.to_vec())),
        (None, Some(verdict)) => Ok(Value::Verdict(action(verdict, chain)?)),
        _ => Err("neither value nor verdict".to_owned()),
    }
}

fn action(told: &[u8], chain: impl Fn(&str) -> Option<usize>) -> Result<Action, Odd> {
    let fields = Fields::new(told, &[1, 2, 3])?;
    let code = fields.need_number(1)?.cast_signed();
    let to = || {
        let name = fields.text(2);
        chain(&name).ok_or_else(|| format!("jump to chain {name}, which is not listed"))
    };
    Ok(match code {
        0 => Action::Drop,
        1 => Action::Accept,
        -1 => Action::Continue,
        -2 => Action::Break,
        -3 => Action::Jump(to()?),
        -4 => Action::Goto(to()?),
        -5 => Action::Return,
        // NF_QUEUE, with the queue's number above.
        code if code > 0 && code & 0xff == 3 => Action::Queue,
        code => return Err(format!("verdict {code}")),
    })
}
