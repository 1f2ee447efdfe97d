//! Writes the rules of this network namespace as the kernel reports them: one nf_tables message per
//! line, its type and its bytes in hexadecimal. Tests read such files.
//!
//! `nsenter --net=PATH target/debug/examples/record >FILE`

use std::fmt::Write as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (generation, messages) = ruleset::messages(&mut ruleset::Nftables::open()?)?;
    let mut text = format!("# generation {generation}\n");
    for message in messages {
        write!(text, "{} ", message.kind)?;
        for byte in message.payload {
            write!(text, "{byte:02x}")?;
        }
        text.push('\n');
    }
    print!("{text}");
    Ok(())
}
